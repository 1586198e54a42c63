"""`kvtwin gpu`: exit codes, one-line messages, the table and the JSON object."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def kvtwin(*arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command line, after the Python statements `before`, in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    code = f"{before}\nfrom kvtwin.analysis.cli import main\nmain({list(arguments)!r})"
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


def test_a_check_names_what_ran() -> None:
    done = kvtwin("gpu", "check", "--quick", "--kernel", "merge_partials", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("| backend | kernel | configuration | error | tolerance | bytes |")
    rows = [line for line in lines if line.startswith(("| triton", "| torch"))]
    assert {row.split(" | ")[0] for row in rows} == {"| triton-interpret", "| torch"}
    assert all(row.endswith("| pass |") for row in rows)
    assert lines[-1].startswith(f"{len(rows)} checks on triton-interpret and torch: all passed")


def test_json_is_one_object() -> None:
    done = kvtwin("gpu", "check", "--kernel", "copy_blocks", "--quick", "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["device"] == "cpu"
    assert {result["kernel"] for result in printed["results"]} == {"copy_blocks"}
    for result in printed["results"]:
        assert (result["bytes"] is None) == (result["backend"] == "torch")


BREAK = """
import kvtwin.gpu.torch_ops as ops
right = ops.copy_blocks
def copy_blocks(k_pool, v_pool, pairs, **options):
    right(k_pool, v_pool, pairs.flip(1), **options)
ops.copy_blocks = copy_blocks
"""


def test_a_kernel_named_twice_is_checked_once() -> None:
    named = ("--kernel", "merge_partials")
    done = kvtwin("gpu", "check", "--quick", *named, *named, "--json")
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    told = [(result["backend"], result["configuration"]) for result in results]
    assert len(told) == len(set(told)) > 0


def test_a_failure_has_exit_code_1() -> None:
    """Copies in the wrong direction, in torch alone: the kernels pass beside it."""
    done = kvtwin("gpu", "check", "--quick", "--kernel", "copy_blocks", before=BREAK)
    assert done.returncode == 1, done.stderr
    rows = done.stdout.splitlines()
    assert all("FAIL" in row for row in rows if row.startswith("| torch"))
    assert all("pass" in row for row in rows if row.startswith("| triton"))
    assert "of them FAILED" in rows[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("check", "--kernel", "decode"), "--kernel decode: no such kernel; choose from paged_"),
        (("check", "--device", "tpu"), "device tpu: choose cuda or cpu"),
        (("check", "--device", "cuda"), "device cuda: torch finds no CUDA device; choose cpu"),
        (("bench",), "gpu bench needs a CUDA device and torch finds none"),
    ],
)
def test_what_cannot_be_done_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    done = kvtwin("gpu", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert message in line


HAS_CUDA = "import torch\ntorch.cuda.is_available = lambda: True\n"


@pytest.mark.parametrize("command", [("bench",), ("check", "--device", "cuda", "--json")])
@pytest.mark.parametrize(
    ("before", "message"),
    [
        (
            "import sys\nsys.modules['triton'] = None",
            "the kernels need triton, which is not installed: make .venv/.extras, or .venv/bin/pip install -e '.[gpu]'",
        ),
        (
            "import os\nos.environ['TRITON_INTERPRET'] = '1'",
            "TRITON_INTERPRET is set: unset it to compile for the GPU",
        ),
    ],
)
def test_a_gpu_without_compiled_kernels_is_one_line(
    command: tuple[str, ...], before: str, message: str
) -> None:
    done = kvtwin("gpu", *command, before=HAS_CUDA + before)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert message in line


def test_timings_that_fail_are_a_line_each() -> None:
    """Of a device that is not there after all, whatever is timed."""
    done = kvtwin("gpu", "bench", "--json", before=HAS_CUDA)
    assert done.returncode == 1
    assert json.loads(done.stdout)["rows"] == []
    first, *lines = done.stderr.splitlines()
    assert first.startswith("FAILED: read: ")
    assert len(lines) > 10
    assert all(line.startswith("FAILED: BenchShape(num_seqs=") for line in lines)


@pytest.mark.parametrize("command", [("gpu", "check"), ("validate", "--device", "cpu")])
def test_without_torch_it_says_what_to_install_as_the_readme_does(command: tuple[str, ...]) -> None:
    done = kvtwin(*command, before="import sys\nsys.modules['torch'] = None")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "torch" in line
    target, pip = "make .venv/.extras", ".venv/bin/pip install -e '.[gpu]'"
    assert line.endswith(f"which is not installed: {target}, or {pip}")
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert all(readme.count(f"`{way}`") == readme.count("[gpu]") == 2 for way in (target, pip))


def test_without_triton_the_torch_operations_are_checked() -> None:
    done = kvtwin(
        *("gpu", "check", "--quick", "--kernel", "merge_partials", "--device", "cpu"),
        before="import sys\nsys.modules['triton'] = None",
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("triton is not installed, so the kernels are not checked")
    rows = [row for row in done.stdout.splitlines() if row.endswith("| pass |")]
    assert rows
    assert all(row.startswith("| torch |") for row in rows)


def test_help_loads_neither_torch_nor_triton() -> None:
    before = (
        "import atexit, sys\natexit.register(lambda: print({'torch', 'triton'} & {*sys.modules}))"
    )
    done = kvtwin("gpu", "check", "--help", before=before)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "set()"
    for kernel in ("paged_decode", "contiguous_decode", "paged_prefill", "store_kv"):
        assert kernel in done.stdout
