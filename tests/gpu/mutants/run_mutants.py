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
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))

import pytest
from catalogue import MUTANTS, OFFSETS, OPERATIONS, RESULTS, ROOT
from mutant import Mutant
from verdicts import Verdict, killed_before, render, save  # loads torch and triton, once for all

TIMEOUT_FACTOR = 4


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


def main() -> int:
    """Run, write the report, and return 1 if a mutant survived without a proof."""
    parser = argparse.ArgumentParser(prog="make mutants")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    parser.add_argument("--survivors", action="store_true", help="again, those of the last run")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    verdicts = killed_before() if options.survivors else []
    done = {verdict.mutant.name for verdict in verdicts}
    mutants = [m for m in MUTANTS if options.only in m.name and m.name not in done]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        tree = snapshot(place)
        seconds = baseline_s(tree, place)
        print(f"unchanged: passes in {seconds:.0f} s", flush=True)
        timeout_s = int(TIMEOUT_FACTOR * seconds) + 30
        for verdict in run_all(mutants, tree, place, options.jobs, timeout_s):
            verdicts.append(verdict)
            word = f"killed by {verdict.killer}" if verdict.is_killed else "SURVIVED"
            number = len(verdicts) - len(done)
            print(f"{number}/{len(mutants)} {verdict.mutant.name}: {word}", flush=True)
    if not options.only:
        save(verdicts)
    if options.out is not None:
        options.out.write_text(render(verdicts, len(done)), encoding="utf-8")
    unexplained = [v for v in verdicts if not v.is_killed and not v.mutant.why_equivalent]
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
