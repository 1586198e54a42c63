"""Policies whose log leaves something out are told what to record, in one line."""

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


LACKS = "and its log gave it fewer; grant, extend and grow must record every run they take"
HELD = "and somebody still holds some of them; free must record every run that comes back"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("NoGrants", f"request 0 computes what needs 20 slots, {LACKS}"),
        ("NoExtends", f"request 0 computes what needs 21 slots, {LACKS}"),
        ("NoFrees", f"its log gives request 1 slots 0 to 63, {HELD}"),
    ],
)
def test_what_a_log_lacks_is_one_line(
    name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two requests of 20 + 20 tokens, one at a time in a pool of 64 slots."""
    trace, policy = tmp_path / "trace.csv", f"{__name__}:{name}"
    trace.write_text("arrival_ns,num_prompt_tokens,num_output_tokens\n0,20,20\n0,20,20\n")
    with pytest.raises(SystemExit) as stop:
        main(
            [
                *("validate", str(trace), "--policies", policy, "--out", str(tmp_path / "out")),
                *("--model", "opt-125m", "--gpu", "l4", "--max-model-len", "64", "--device", "cpu"),
                *("--num-gpu-blocks-override", "4", "--max-num-seqs", "1"),
                *("--layers", "1", "--heads", "2", "--head-dim", "16"),
            ]
        )
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"kvtwin: policy {policy}: {said}")
    assert list(tmp_path.iterdir()) == [trace], "nothing half-written is left"
