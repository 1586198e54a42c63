"""What a device run spends its time on, and its exit code: with a clock and checks that tests set."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest

from kvtwin.gpu import timed_run as module
from kvtwin.gpu.bench import BenchRow
from kvtwin.gpu.check import Result

SECONDS = 100.0


TWIN_END = 73.0  # when the twin is done, in seconds


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run checks that take a second each, pass or fail as listed, and timings of ten seconds."""

    def run_checks(
        quick: list[bool], full: list[bool], twin_passes: bool = True
    ) -> tuple[int, list[dict[str, Any]]]:
        clock = SimpleNamespace(now=0.0)

        def run_all(found: Any, kernels: Any, *, quick: bool, skip: set[Any]) -> Iterator[Result]:
            for number, passes in enumerate(verdicts[quick]):
                if ("cuda", "k", str(number)) in skip:
                    continue
                clock.now += 1.0
                yield Result("cuda", "k", str(number), 0.0 if passes else 1.0, 0.5)

        def run_bench(*arguments: Any, **options: Any) -> Iterator[BenchRow]:
            while True:
                clock.now += 10.0
                yield BenchRow("read", None, 1, 1, None, None, None)

        @contextmanager
        def backends(device: str) -> Iterator[list[Any]]:
            assert device == "cuda"
            yield [None]

        def twin(*arguments: Any) -> bool:
            clock.now = TWIN_END
            return twin_passes

        verdicts = {True: quick, False: full}
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
        monkeypatch.setattr(module, "run_all", run_all)
        monkeypatch.setattr(module, "run_bench", run_bench)
        monkeypatch.setattr(module, "backends", backends)
        monkeypatch.setattr(module, "_twin", twin)
        monkeypatch.setattr(module, "_machine", lambda dry_run: {})
        monkeypatch.setattr(module.torch.cuda, "is_available", lambda: True)
        file = StringIO()
        code = module.timed_run(file, SECONDS, dry_run=False)
        return code, [json.loads(line) for line in file.getvalue().splitlines()]

    return run_checks


def nums(lines: list[dict[str, Any]]) -> dict[str, int]:
    kinds = ("check", "bench", "error")
    return {kind: sum(line["kind"] == kind for line in lines) for kind in kinds}


def test_the_quick_check_ends_at_20_seconds_of_100_the_rest_at_80_and_timings_with_the_time(
    run: Any,
) -> None:
    code, lines = run([True] * 1000, [True] * 1000)
    checked = [line for line in lines if line["kind"] == "checked"]
    assert [(line["num"], line["complete"]) for line in checked] == [(20, False), (7, False)]
    assert nums(lines) == {"check": 27, "bench": 2, "error": 0}
    assert lines[-1] == {
        "kind": "end",
        "at_s": 100.0,
        "all_passed": False,
        "quick_check_complete": False,
    }
    assert code == 1


def test_the_rest_skips_what_was_checked(run: Any) -> None:
    code, lines = run([True] * 10, [True] * 1000)
    checked = [line for line in lines if line["kind"] == "checked"]
    assert [(line["num"], line["complete"]) for line in checked] == [(10, True), (7, False)]
    assert nums(lines) == {"check": 17, "bench": 2, "error": 0}
    assert [line["configuration"] for line in lines if line["kind"] == "check"] == [
        str(number) for number in range(17)
    ]
    assert (code, lines[-1]["all_passed"], lines[-1]["quick_check_complete"]) == (0, True, True)


def test_a_twin_that_fails_is_exit_code_1(run: Any) -> None:
    code, lines = run([True], [True], twin_passes=False)
    assert (code, lines[-1]["all_passed"], lines[-1]["quick_check_complete"]) == (1, False, True)


@pytest.mark.parametrize(
    ("quick", "full"),
    [
        ([False, True, True], [True] * 5),
        ([True, True, False], [True] * 5),
        ([True] * 3, [True] * 4 + [False]),
        ([True] * 3, [True, True, True, False, True]),
    ],
)
def test_one_failed_check_is_exit_code_1(run: Any, quick: list[bool], full: list[bool]) -> None:
    """Whichever it is, though nothing raised and everything came to its end."""
    code, lines = run(quick, full)
    failed = [line for line in lines if line.get("verdict") == "fail"]
    assert len(failed) == 1
    assert nums(lines)["error"] == 0
    assert (code, lines[-1]["all_passed"], lines[-1]["quick_check_complete"]) == (1, False, True)
