"""Everything of the device half loads anywhere: without a GPU, and without the interpreter."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    "kvtwin." + path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    for path in (ROOT / "gpu").rglob("*.py")
    if path.stem != "__init__"
)


def load(code: str) -> str:
    """Standard output of `code` in a process that compiles its kernels."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_modules_load() -> None:
    assert len(MODULES) > 25
    printed = load(
        f"from importlib import import_module\nfor name in {MODULES}: import_module(name)\n"
        "from kvtwin.gpu.kernels import is_interpreted\nprint(is_interpreted())"
    )
    assert printed.strip() == "False"


def test_the_torch_operations_need_no_triton() -> None:
    printed = load(
        "import sys\nsys.modules['triton'] = None\n"
        "from kvtwin.gpu.check import backends\n"
        "with backends('cpu') as found: print([backend.name for backend in found])"
    )
    assert printed.strip() == "['torch']"


def test_what_cannot_run_is_said() -> None:
    """Compiled kernels have no interpreter; a GPU needs triton."""
    for device, hidden, message in (
        ("cpu", "", "TRITON_INTERPRET=1"),
        ("cuda", "sys.modules['triton'] = None", "the kernels need triton, which is not installed"),
    ):
        printed = load(
            f"import sys\n{hidden}\n"
            "from kvtwin.gpu.check import backends\n"
            "from kvtwin.gpu.errors import UnavailableError\n"
            "try:\n"
            f"    with backends({device!r}): pass\n"
            "except UnavailableError as error: print(error)"
        )
        assert message in printed
        assert len(printed.splitlines()) == 1


def test_a_cpu_that_interprets_is_no_gpu() -> None:
    printed = load(
        "import os\nos.environ['TRITON_INTERPRET'] = '1'\n"
        "from kvtwin.gpu.check import backends\n"
        "from kvtwin.gpu.errors import UnavailableError\n"
        "try:\n"
        "    with backends('cuda'): pass\n"
        "except UnavailableError as error: print(error)"
    )
    assert "TRITON_INTERPRET is set" in printed
