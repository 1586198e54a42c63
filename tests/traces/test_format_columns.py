"""Flat files whose columns the user names."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from example_counts import fuzz_examples
from format_cases import S, awaited, broken_bytes, check_fuzzed, column, lengths, write
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtwin.traces import ReadOptions, Trace, UserError, describe, open_trace, parse_columns

ROWS = [
    {"ts": "1.5", "in": 5, "out": 6, "who": "a", "cap": 8, "x": 1},
    {"ts": "2", "in": 0, "out": 1, "who": "a", "cap": 8, "x": 1},
    {"ts": "2.25", "in": 7, "out": 0, "who": "a", "cap": 8, "x": 1},
    {"ts": "3", "in": 9, "out": 2, "who": "", "cap": None, "x": 1},
    {"ts": "4.000000001", "in": 3, "out": 4, "who": "a", "cap": None, "x": 1},
]
COLUMNS = "arrival=ts:s,prompt=in,output=out,session=who,max_tokens=cap"


def read(path: Path, columns: str, format: str | None = None) -> Trace:
    return open_trace(path, format, ReadOptions(columns=parse_columns(columns)))


def as_csv(rows: list[dict[str, Any]]) -> str:
    lines = [",".join("" if v is None else str(v) for v in row.values()) for row in rows]
    return "\n".join([",".join(rows[0]), *lines])


def as_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "numbers.jsonl", "csv.gz"])
def test_one_trace_in_every_shape(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"t.{kind}"
    if kind == "parquet":
        as_parquet(path, ROWS)
    elif kind.startswith("csv"):
        write(path, as_csv(ROWS))
    else:
        rows = [r | {"ts": float(r["ts"])} if "numbers" in kind else r for r in ROWS]
        write(path, "\n".join(map(json.dumps, rows)))
    trace = read(path, COLUMNS)
    assert trace.format == "columns"
    assert column(trace, "arrival_ns") == [0, 1_500_000_000, 2_500_000_001]
    assert lengths(trace) == [(5, 6), (9, 2), (3, 4)]
    assert column(trace, "max_tokens") == [8, -1, -1]
    assert awaited(trace) == [([], -1), ([], -1), ([0], -1)]
    assert trace.unknown_keys == {"x": 5}
    assert trace.skipped == {
        "failed call, no output tokens": 1,
        "call without prompt tokens": 1,
    }


@pytest.mark.parametrize(
    ("unit", "first", "second", "between_ns"),
    [
        ("s", "0", "0.0000000015", 2),
        ("ms", "7", "8.5", 1_500_000),
        ("us", "7", "1e3", 993_000),
        ("ns", "1000000000000000000", "1000000000000000000", 0),
        ("ns", "0.4", "1.5", 2),
        ("date", "2026-02-03 04:05:06", "2026-02-03T04:05:07.25+00:00", 1_250_000_000),
    ],
)
def test_units(tmp_path: Path, unit: str, first: str, second: str, between_ns: int) -> None:
    path = write(tmp_path / "t.csv", f"when,in,out\n{first},1,1\n{second},1,1\n")
    trace = read(path, f"arrival=when:{unit},prompt=in,output=out")
    assert column(trace, "arrival_ns") == [0, between_ns]


def test_parquet_knows_dates(tmp_path: Path) -> None:
    stamps = pa.array([0, 2_500_000], pa.timestamp("us", "UTC"))
    table = pa.table({"when": stamps, "in": [1, 2], "out": [1, 2]})
    pq.write_table(table, tmp_path / "t.parquet")
    trace = read(tmp_path / "t.parquet", "arrival=when:date,prompt=in,output=out")
    assert column(trace, "arrival_ns") == [0, 2_500_000_000]


def test_without_arrivals_all_come_at_once(tmp_path: Path) -> None:
    trace = read(write(tmp_path / "t.csv", as_csv(ROWS)), "prompt=in,output=out")
    assert trace.saturated
    assert trace.notes == ("no arrival column was named: all requests arrive at once",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prompt=in", "--columns has no output; write it like"),
        ("prompt=in,output", "--columns has output;"),
        ("prompt=in,output=", "--columns has output=;"),
        ("prompt=a,prompt=b,output=c", "--columns has prompt=b;"),
        ("prompt=a,output=c,rate=d", "fields, each once: arrival, prompt, output, session"),
        ("arrival=t,prompt=a,output=c", "arrival=t; name its unit too, like arrival=ts:ms"),
        ("arrival=t:h,prompt=a,output=c", "units: s, ms, us, ns, date"),
        ("arrival=:s,prompt=a,output=c", "name its unit too"),
    ],
)
def test_columns_that_say_too_little(text: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_columns(text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("row", "where", "words"),
    [
        ({"in": -5}, "2", "in is -5; it must be a whole number of at least 0"),
        ({"in": 5.5}, "2", "in is 5.5"),
        ({"out": "many"}, "2", "out is many"),
        ({"ts": "noon"}, "2", "ts is noon"),
        ({"ts": "0"}, "2", "ts is 0, earlier than 1.5 at"),
        ({"cap": 0}, "2", "cap is 0"),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_bad_values(
    tmp_path: Path, kind: str, row: dict[str, object], where: str, words: str
) -> None:
    rows = [ROWS[0], ROWS[0] | row]
    path = tmp_path / f"t.{kind}"
    if kind == "parquet":
        # A column of a Parquet file has one type.
        text = {k: pa.array([str(r[k]) for r in rows]) for k in rows[0]}
        pq.write_table(pa.table(text), path)
    else:
        write(path, as_csv(rows) if kind == "csv" else "\n".join(map(json.dumps, rows)))
    with pytest.raises(UserError) as caught:
        read(path, COLUMNS)
    line = f"row {where}" if kind == "parquet" else f"line {int(where) + (kind == 'csv')}"
    assert f"{path} {line}: {words}" in str(caught.value)


def test_what_does_not_go_together(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", as_csv(ROWS))
    with pytest.raises(UserError, match="--columns is given with format azure; leave one"):
        read(path, COLUMNS, "azure")
    with pytest.raises(UserError, match="format columns needs --columns; write it like"):
        open_trace(path, "columns")
    with pytest.raises(UserError, match="line 1: column nope is missing; columns seen: ts, in"):
        read(path, "prompt=nope,output=out")
    as_parquet(tmp_path / "t.parquet", ROWS)
    with pytest.raises(UserError, match="column nope is there 0 times; columns seen: ts, in"):
        read(tmp_path / "t.parquet", "prompt=nope,output=out")


def test_public_conversion(shared_dir: Path) -> None:
    """Figures of the README of the reference data."""
    trace = read(
        shared_dir / "traces/burstgpt/burstgpt3_first105_derived.jsonl",
        "arrival=arrival_ms:ms,prompt=input_length,output=output_length,session=session_id",
    )
    summary = describe(trace)
    assert summary.num_requests == 105
    assert f"{105 / summary.span_s:.3f}" == "0.003"
    assert f"{summary.interarrival_cv:.2f}" == "1.87"
    assert summary.sessions is not None
    assert summary.sessions.num_sessions == 37
    for found, wanted in (
        (summary.prompt, [1180, 384, 13082, 25085]),
        (summary.output, [201, 98, 861, 879]),
    ):
        assert [round(v) for v in (found.mean, found.p50, found.p99, found.max)] == wanted
    assert summary.span_s * S == trace.chunks[0].arrival_ns[-1]


FILES = [as_csv(ROWS).encode(), "\n".join(map(json.dumps, ROWS)).encode()]


@settings(max_examples=fuzz_examples())
@given(data=st.sampled_from(FILES).flatmap(broken_bytes), dates=st.booleans())
def test_fuzz(tmp_path_factory: pytest.TempPathFactory, data: bytes, dates: bool) -> None:
    columns = parse_columns(COLUMNS.replace("ts:s", "ts:date") if dates else COLUMNS)
    path = tmp_path_factory.getbasetemp() / "columns.fuzz"
    check_fuzzed(path, data, None, columns=columns)
