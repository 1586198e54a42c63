"""Whatever bytes a file holds, reading it gives a trace or a UserError of one line."""

import io
from pathlib import Path

import numpy as np
import pytest
from example_counts import fuzz_examples
from format_cases import broken_bytes, check_fuzzed
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtwin.traces import FORMATS, UserError, open_trace, synthesize
from kvtwin.traces.formats import kvtwin_parquet

ROWS = [(0, 3, 4), (1, 600, 1), (1, 1024, 9), (5, 2, 2)]


def _parquet() -> bytes:
    file = io.BytesIO()
    kvtwin_parquet.write(synthesize("alpaca-like", 4, seed=0), file)
    return file.getvalue()


VALID = {
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    + "\r\n".join(f"2023-11-16 18:17:0{t}.9799600,{p},{o}" for t, p, o in ROWS),
    "vidur": "arrived_at,num_prefill_tokens,num_decode_tokens\n"
    + "".join(f"{t}.25,{p},{o}\n" for t, p, o in ROWS),
    "mooncake": "".join(
        f'{{"timestamp": {t}, "input_length": {p}, "output_length": {o},'
        f' "hash_ids": {list(range(-(-p // 512)))}}}\n'
        for t, p, o in ROWS
    ),
    "kvtwin-csv": "arrival_ns,num_prompt_tokens,num_output_tokens,max_tokens\n"
    + "".join(f"{t},{p},{o},{o}\n" for t, p, o in ROWS),
}
FILES = {name: text.encode() for name, text in VALID.items()} | {"kvtwin-parquet": _parquet()}


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=fuzz_examples())
@given(data=st.data(), format=st.sampled_from([None, "own", *FILES]))
def test_broken_files(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject, format: str | None
) -> None:
    content = data.draw(broken_bytes(FILES[name]))
    path = tmp_path_factory.getbasetemp() / "broken.trace"
    check_fuzzed(path, content, name if format == "own" else format)


@given(
    head=st.sampled_from([b"", *(data.split(b"\n")[0] + b"\n" for data in FILES.values())]),
    junk=st.one_of(st.binary(max_size=200), st.text(max_size=100).map(str.encode)),
    format=st.one_of(st.none(), st.sampled_from(list(FORMATS))),
)
def test_junk(
    tmp_path_factory: pytest.TempPathFactory, head: bytes, junk: bytes, format: str | None
) -> None:
    check_fuzzed(tmp_path_factory.getbasetemp() / "junk.trace", head + junk, format)


@given(
    blanks=st.lists(st.sampled_from(["", "", "\n", "\n\n"]), min_size=6, max_size=6),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    bad=st.integers(0, 3),
)
def test_line_number_is_the_physical_one(
    tmp_path_factory: pytest.TempPathFactory, blanks: list[str], end: str, bad: int
) -> None:
    lines = VALID["kvtwin-csv"].splitlines()
    lines[1 + bad] = broken = f"{ROWS[bad][0]},1,-77,"
    text = blanks[0] + "".join(
        line + "\n" + blank for line, blank in zip(lines, blanks[1:], strict=True)
    )
    number = text.split("\n").index(broken) + 1
    path = tmp_path_factory.getbasetemp() / "lines.csv"
    path.write_bytes(text.replace("\n", end).encode())
    with pytest.raises(UserError, match=f"line {number}: num_output_tokens is -77;"):
        open_trace(path)


def test_the_valid_files_are_valid(tmp_path: Path) -> None:
    for name, data in FILES.items():
        path = tmp_path / "trace"
        path.write_bytes(data)
        trace = open_trace(path)
        assert trace.format == name
        assert trace.num_requests == 4
        if name != "kvtwin-parquet":
            assert np.array_equal(trace.chunks[0].num_prompt_tokens, [row[1] for row in ROWS])
