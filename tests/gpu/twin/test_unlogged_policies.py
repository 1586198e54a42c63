"""Policies whose log leaves something out are told what to record, or found out by the audit."""

from pathlib import Path

import pytest

from kvtwin.analysis.cli import main
from kvtwin.sim import Sequence
from kvtwin.sim.policies.contiguous import Contiguous
from kvtwin.sim.policies.static import StaticIteration


class NoGrants(StaticIteration):
    def record(self, action: str, seq: Sequence, first: int, num: int) -> None:
        if action != "grant":
            super().record(action, seq, first, num)


class NoFrees(StaticIteration):
    def record(self, action: str, seq: Sequence, first: int, num: int) -> None:
        if action != "free":
            super().record(action, seq, first, num)


class NoExtends(Contiguous):
    def record(self, action: str, seq: Sequence, first: int, num: int) -> None:
        if action != "extend":
            super().record(action, seq, first, num)


def validated(name: str, folder: Path) -> int | str | None:
    """Exit code: two requests of 20 + 20 tokens, one at a time in a pool of 64 slots."""
    trace = folder / "trace.csv"
    trace.write_text("arrival_ns,num_prompt_tokens,num_output_tokens\n0,20,20\n0,20,20\n")
    with pytest.raises(SystemExit) as stop:
        main(
            [
                *("validate", str(trace), "--policies", f"{__name__}:{name}"),
                *("--model", "opt-125m", "--gpu", "l4", "--max-model-len", "64", "--device", "cpu"),
                *("--num-gpu-blocks-override", "4", "--max-num-seqs", "1"),
                *("--layers", "1", "--heads", "2", "--head-dim", "16"),
                *("--out", str(folder / "out")),
            ]
        )
    return stop.value.code


def test_a_log_without_grants_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert validated("NoGrants", tmp_path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"kvtwin: policy {__name__}:NoGrants: request 0 computes what needs 20 slots, and its log gave it none; grant, "
        "extend and grow must record every run they take"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["trace.csv"], "nothing is half-written"


@pytest.mark.parametrize(
    ("name", "finding"),
    [("NoExtends", "request 0: expected at most 20, found 21"), ("NoFrees", "double grant")],
)
def test_what_else_a_log_lacks_is_found(
    name: str, finding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert validated(name, tmp_path) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[-1].startswith("FAILED: ")
    assert finding in (tmp_path / "out" / "validation.json").read_text()
