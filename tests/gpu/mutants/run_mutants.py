"""Plant each fault in a copy of the kernels and see which test notices: `make mutants`.

Every mutant runs in a process of its own, forked after torch and triton are loaded. A mutant is
killed by the first test that fails, by a crash, or by running TIMEOUT_FACTOR times longer than the
unchanged kernels; it survives if all tests pass.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))

import faults_attention
import faults_copies
import faults_decode
import faults_prefill
import pytest
import torch
import triton
from mutant import Mutant

ROOT = Path(__file__).parents[3]
MUTANTS = (
    *faults_attention.FAULTS,
    *faults_decode.FAULTS,
    *faults_prefill.FAULTS,
    *faults_copies.FAULTS,
)
# What looks at the results of kernels; offsets of more than 32 bits have tests of their own.
RESULTS = ("tests/gpu/test_kernel_matrix.py", "tests/gpu/test_extreme_scores.py")
OFFSETS = ("tests/gpu/test_long_strides.py", "tests/gpu/test_large_pools.py")
# Which operations a file is part of: only their tests run, those of the first before the others.
OPERATIONS = {
    "kernels/attend.py": ("paged_decode", "paged_prefill"),
    "kernels/merge.py": ("merge_partials", "paged_decode"),
    "kernels/paged_decode.py": ("paged_decode", "contiguous_decode"),
    "kernels/paged_prefill.py": ("paged_prefill",),
    "kernels/store_kv.py": ("store_kv",),
    "kernels/copy_blocks.py": ("copy_blocks", "swap_blocks"),
    "kernels/swap_blocks.py": ("swap_blocks",),
    "arguments/swaps.py": ("swap_blocks",),
}
TIMEOUT_FACTOR = 4


@dataclass(frozen=True)
class Verdict:
    """`killer`: the test that failed, `crash`, `timeout`, or empty if all passed."""

    mutant: Mutant
    killer: str
    reason: str
    wall_s: float

    @property
    def is_killed(self) -> bool:
        return bool(self.killer)


class FirstFailure:
    """A pytest plugin that keeps the first failure and how often it stopped."""

    def __init__(self) -> None:
        self.test = ""
        self.reason = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.test:
            self.test = report.nodeid
            crash = getattr(report.longrepr, "reprcrash", None)
            self.reason = str(crash.message if crash else report.longrepr).splitlines()[0]


def snapshot(folder: Path) -> Path:
    """Copy sources and tests, so that all mutants are of the same tree whatever happens to it."""
    tree = folder / "tree"
    for name in ("traces", "sim", "gpu", "analysis", "tests", "benchmarks"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    return tree


def plant(mutant: Mutant | None, tree: Path, folder: Path) -> Path:
    """Make a package `kvtwin` below `folder` whose gpu is a changed copy; return the path to import."""
    package = folder / "kvtwin"
    package.mkdir(parents=True)
    for name in ("traces", "sim", "analysis"):
        (package / name).symlink_to(tree / name)
    shutil.copytree(tree / "gpu", package / "gpu", ignore=shutil.ignore_patterns("__pycache__"))
    if mutant is not None:
        mutant.apply(package / "gpu")
    return folder


def rounds(mutant: Mutant | None) -> Iterator[tuple[list[str], str]]:
    """Yield pytest's files and -k, round by round: of the operations that the mutant's file is in."""
    tests = [*RESULTS, *OFFSETS]
    if mutant is None:
        yield tests, "not torch"
        return
    if "32-bit" in mutant.name:
        tests = [*OFFSETS, *RESULTS]
    for operation in OPERATIONS[mutant.file]:
        yield tests, f"{operation} and not torch"


def run_tests(mutant: Mutant | None, tree: Path, import_path: Path, answer: Path) -> None:
    """Run the tests of `tree` on the package at `import_path`; write what failed to `answer`."""
    os.chdir(tree)
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(import_path))
    from kvtwin.gpu import kernels

    assert Path(kernels.__file__).is_relative_to(import_path), kernels.__file__
    failure = FirstFailure()
    for tests, selected in rounds(mutant):
        arguments = [*tests, "-k", selected, "-x", "-q", "-p", "no:cacheprovider"]
        # A fault must be noticed by what it does, not by a warning that only numpy gives.
        arguments += ["-W", "ignore::RuntimeWarning"]
        code = pytest.main(arguments, plugins=[failure])
        if code != pytest.ExitCode.OK:
            if not failure.test:
                failure.test, failure.reason = "collection", f"pytest ended with {code!r}"
            break
    answer.write_text(json.dumps([failure.test, failure.reason]), encoding="utf-8")


def start(mutant: Mutant | None, tree: Path, folder: Path) -> int:
    """Fork a process that runs the tests on a mutant (or on the unchanged kernels); return its id."""
    import_path = plant(mutant, tree, folder)
    process = os.fork()
    if process == 0:
        code = 1
        try:
            run_tests(mutant, tree, import_path, folder / "answer.json")
            code = 0
        finally:
            os._exit(code)
    return process


def verdict_of(mutant: Mutant, folder: Path, status: int, wall_s: float) -> Verdict:
    """Read what a finished process left."""
    answer = folder / "answer.json"
    if answer.exists():
        killer, reason = json.loads(answer.read_text(encoding="utf-8"))
        return Verdict(mutant, killer, reason, wall_s)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
        return Verdict(mutant, "timeout", "still running", wall_s)
    return Verdict(mutant, "crash", f"wait status {status}", wall_s)


def run_all(
    mutants: Sequence[Mutant], tree: Path, place: Path, num_jobs: int, timeout_s: int
) -> Iterator[Verdict]:
    """Run the mutants of `tree` below `place`, `num_jobs` at a time; yield verdicts as they come."""
    waiting, running = list(mutants), {}
    while waiting or running:
        while waiting and len(running) < num_jobs:
            mutant = waiting.pop(0)
            folder = place / f"mutant{len(waiting)}"
            running[start(mutant, tree, folder)] = (mutant, folder, time.monotonic())
        process, status = os.waitpid(-1, os.WNOHANG)
        if process == 0:
            for child, (_, _, begun) in running.items():
                if time.monotonic() - begun > timeout_s:
                    os.kill(child, signal.SIGALRM)
            time.sleep(0.05)
            continue
        mutant, folder, begun = running.pop(process)
        yield verdict_of(mutant, folder, status, time.monotonic() - begun)
        shutil.rmtree(folder)


def baseline_s(tree: Path, place: Path) -> float:
    """Run the tests on unchanged kernels; return the seconds, or raise SystemExit if they fail."""
    begun = time.monotonic()
    _, status = os.waitpid(start(None, tree, place / "unchanged"), 0)
    unchanged = Mutant("unchanged", "", "", "")
    verdict = verdict_of(unchanged, place / "unchanged", status, time.monotonic() - begun)
    if verdict.is_killed:
        raise SystemExit(f"the unchanged kernels fail {verdict.killer}: {verdict.reason}")
    return verdict.wall_s


def render(verdicts: Sequence[Verdict]) -> str:
    """Return the report."""
    order = {mutant.name: number for number, mutant in enumerate(MUTANTS)}
    verdicts = sorted(verdicts, key=lambda verdict: order[verdict.mutant.name])
    num_killed = sum(verdict.is_killed for verdict in verdicts)
    survivors = [verdict.mutant for verdict in verdicts if not verdict.is_killed]
    proved = [mutant for mutant in survivors if mutant.why_equivalent]
    num_real = len(verdicts) - len(proved)
    lines = [
        "# Mutants of the kernels",
        "",
        "`make mutants`",
        "",
        "Each line is one fault planted in a copy of the kernels, run in Triton's interpreter on a CPU, and the first",
        "test that fails. Nothing here ran on a GPU: what a compiler does wrong, or a race that needs two programs at",
        "once, is not planted.",
        "",
        f"{len(verdicts)} mutants: {num_killed} killed, {len(proved)} equivalent, "
        f"{len(survivors) - len(proved)} survived: {num_killed / num_real:.1%} of those that are faults.",
        "",
        "| mutant | file | first test that fails | how |",
        "|---|---|---|---|",
    ]
    for verdict in verdicts:
        killer = verdict.killer.removeprefix("tests/gpu/") or "**none**"
        reason = verdict.reason.replace("|", "\\|")[:120]
        lines.append(f"| {verdict.mutant.name} | {verdict.mutant.file} | {killer} | {reason} |")
    lines += ["", "## Survivors", ""]
    for mutant in survivors:
        lines.append(f"- {mutant.name}: {mutant.why_equivalent or '**not explained**'}")
    if not survivors:
        lines.append("None.")
    lines += [
        "",
        f"torch {torch.__version__}, triton {triton.__version__}; tests: {', '.join([*RESULTS, *OFFSETS])}.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run, write the report, and return 1 if a mutant survived without a proof."""
    parser = argparse.ArgumentParser(prog="make mutants")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    mutants = [mutant for mutant in MUTANTS if options.only in mutant.name]
    verdicts = []
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        tree = snapshot(place)
        seconds = baseline_s(tree, place)
        print(f"unchanged: passes in {seconds:.0f} s", flush=True)
        timeout_s = int(TIMEOUT_FACTOR * seconds) + 30
        for verdict in run_all(mutants, tree, place, options.jobs, timeout_s):
            verdicts.append(verdict)
            word = f"killed by {verdict.killer}" if verdict.is_killed else "SURVIVED"
            print(f"{len(verdicts)}/{len(mutants)} {verdict.mutant.name}: {word}", flush=True)
    if options.out is not None:
        options.out.write_text(render(verdicts), encoding="utf-8")
    unexplained = [v for v in verdicts if not v.is_killed and not v.mutant.why_equivalent]
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
