"""No file makes the reader or the checks fail in another way than a UserError of one line."""

import re
from collections.abc import Sequence
from pathlib import Path

import engine_logs
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtwin.sim.sizing.engine_log import check_log, read_engine_log
from kvtwin.traces import UserError

LINES = [
    line
    for name, log in vars(engine_logs).items()
    if name.isupper()
    for line in log.splitlines(keepends=True)
]
NUMBERS = ["0", "-1", "0.00", "1", "7", "999,999,999", "9" * 40, "1e9", "nan", "1.5", "0.5.5", ""]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "engine.log"


def survives(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    refusal = ""
    try:
        facts = read_engine_log(path)
    except UserError as error:
        refusal = str(error)
    if refusal:
        assert "\n" not in refusal
        return
    for kv_bytes_per_token in (None, 1, 131072):
        for check in check_log(facts, kv_bytes_per_token):
            assert "\n" not in str(check)
            assert check.verdict in ("agrees", "disagrees", "not applicable")


@given(content=st.binary(max_size=400))
@settings(max_examples=examples(100))
def test_any_bytes(path: Path, content: bytes) -> None:
    survives(path, content)


@given(lines=st.lists(st.sampled_from(LINES), max_size=30), cut=st.integers(0, 300))
@settings(max_examples=examples(200))
def test_any_lines_in_any_order_cut_anywhere(path: Path, lines: Sequence[str], cut: int) -> None:
    text = "".join(lines)
    survives(path, text[: max(0, len(text) - cut)].encode())


@given(
    lines=st.lists(st.sampled_from(LINES), min_size=1, max_size=8),
    draw=st.data(),
)
@settings(max_examples=examples(200))
def test_any_numbers(path: Path, lines: Sequence[str], draw: st.DataObject) -> None:
    text = "".join(lines)
    for _ in range(draw.draw(st.integers(1, 6))):
        numbers = list(re.finditer(r"[\d.,]*\d", text))
        if numbers:
            number = draw.draw(st.sampled_from(numbers))
            other = draw.draw(st.sampled_from(NUMBERS))
            text = text[: number.start()] + other + text[number.end() :]
    survives(path, text.encode())


@given(noise=st.binary(max_size=60), line=st.sampled_from(LINES), at=st.integers(0, 400))
@settings(max_examples=examples(100))
def test_noise_within_a_line(path: Path, noise: bytes, line: str, at: int) -> None:
    content = line.encode()
    survives(path, content[:at] + noise + content[at:])
