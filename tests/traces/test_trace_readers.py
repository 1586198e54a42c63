"""What each reader makes of a small valid file."""

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvtwin.traces import FORMATS, WRITABLE_FORMATS, Trace, TraceChunk, UserError, open_trace
from kvtwin.traces.formats.registry import load_format

OWN = "arrival_ns,num_prompt_tokens,num_output_tokens"


def read(tmp_path: Path, content: str | bytes, format: str | None = None) -> Trace:
    path = tmp_path / "some.trace.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return open_trace(path, format)


def only(trace: Trace) -> TraceChunk:
    (chunk,) = trace.chunks
    return chunk


def test_azure_2023_keeps_every_100_ns(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-11-16 23:59:59.9799600,4808,10\r\n"
        "2023-11-16 23:59:59.9799601,3180,8\r\n"
        "2023-11-17 00:00:00.0000000,110,27",
    )
    chunk = only(trace)
    assert (trace.name, trace.format, trace.skipped) == ("some.trace", "azure", {})
    assert chunk.arrival_ns.tolist() == [0, 100, 20_040_000]
    assert chunk.num_prompt_tokens.tolist() == [4808, 3180, 110]
    assert chunk.num_output_tokens.tolist() == [10, 8, 27]
    assert chunk.max_tokens.tolist() == [-1, -1, -1]
    assert chunk.content is None


def test_azure_2024_mixes_fractions_and_zones(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,0,1,2\n"
        "2024-05-10 00:00:01+00:00,0,3,4\n"
        "2024-05-10T00:00:01.269Z,0,5,6\n"
        "2024-05-10 02:00:02.000000001+02:00,0,7,8\n"
        "2024-05-09 18:30:03-05:30,0,9,10\n",
    )
    assert only(trace).arrival_ns.tolist() == [
        0,
        990_070_000,
        1_259_070_000,
        1_990_070_001,
        2_990_070_000,
    ]
    assert only(trace).num_prompt_tokens.tolist() == [1, 3, 5, 7, 9]


@pytest.mark.parametrize("zone", ["+14:00", "-1200", "+23:59", "-23:59", "-00:00", "+0545"])
def test_azure_zones_are_those_of_the_standard_library(zone: str, tmp_path: Path) -> None:
    first, second = "2024-05-10 00:00:00Z", f"2024-05-12 10:20:30{zone}"
    trace = read(tmp_path, f"TIMESTAMP,ContextTokens,GeneratedTokens\n{first},1,1\n{second},1,1\n")
    between = datetime.fromisoformat(second) - datetime.fromisoformat(first)
    assert only(trace).arrival_ns.tolist() == [0, between // timedelta(seconds=1) * 10**9]


@pytest.mark.parametrize(
    "header",
    [
        "arrived_at,num_prefill_tokens,num_decode_tokens",
        "Time,PromptTokenCount,GeneratedTokenCount",
    ],
)
def test_vidur_seconds_are_rounded_once(tmp_path: Path, header: str) -> None:
    rows = {
        "0.0": 0,
        "4.9e-10": 0,
        "2.5e-09": 3,
        "1e-05": 10_000,
        "0.0001000004": 100_000,
        "0.0001000005": 100_001,
        "0.00010000149999999": 100_001,
        "4.314579": 4_314_579_000,
        # A float would be off by 14 ns here, and by 1 ns after multiplying below.
        "99999999.123456789": 99_999_999_123_456_789,
        "9.99999999999e7": 99_999_999_999_900_000,
        "100000000": 10**17,
        "100000000.": 10**17,
    }
    trace = read(tmp_path, header + "\n" + "".join(f"{text},5,6\n" for text in rows))
    assert trace.format == "vidur"
    assert only(trace).arrival_ns.tolist() == list(rows.values())


def test_first_arrival_becomes_0(tmp_path: Path) -> None:
    trace = read(tmp_path, f"{OWN}\n100,1,1\n107,1,1\n")
    assert only(trace).arrival_ns.tolist() == [0, 7]


def test_mooncake_keeps_ids(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        '{"timestamp": 3000, "input_length": 513, "output_length": 2, "hash_ids": [0, 7]}\r\n'
        '{"hash_ids": [18446744073709551615], "timestamp": 3001, "input_length": 512,'
        ' "output_length": 1, "extra": {"a": null}}',
    )
    chunk = only(trace)
    assert trace.format == "mooncake"
    assert chunk.arrival_ns.tolist() == [0, 1_000_000]
    assert chunk.content is not None
    assert chunk.content.block_tokens == 512
    assert chunk.content.offsets.tolist() == [0, 2, 3]
    # The low 31 bits of an id are a place in a stream, the high ones the stream.
    assert chunk.content.streams.tolist() == [0, 0, 2**33 - 1]
    assert chunk.content.starts.tolist() == [0, 7 * 512, (2**31 - 1) * 512]
    assert chunk.content.num_tokens.tolist() == [512, 1, 512]
    assert trace.unknown_keys == {"extra": 1}


def test_own_csv_max_tokens(tmp_path: Path) -> None:
    trace = read(tmp_path, f"max_tokens,{OWN},note\n,0,1,2,a\n30,4,5,6,b\n")
    assert trace.format == "kvtwin-csv"
    assert only(trace).max_tokens.tolist() == [-1, 30]
    assert only(read(tmp_path, f"{OWN}\n0,1,2\n")).max_tokens.tolist() == [-1]


def test_padding_quotes_and_byte_order_mark(tmp_path: Path) -> None:
    header = ", ".join(f'"{name}"' for name in OWN.split(","))
    trace = read(tmp_path, b"\xef\xbb\xbf" + f"{header}\n 0 ,\t1,2\n".encode())
    assert only(trace).num_prompt_tokens.tolist() == [1]


def test_blank_lines_are_counted(tmp_path: Path) -> None:
    assert read(tmp_path, f"{OWN}\n0,1,2\n\n1,1,2\n\n").skipped == {"blank line": 2}
    assert read(tmp_path, f"\r\n{OWN}\r\n0,1,2\r\n\r\n1,1,2").skipped == {"blank line": 2}
    row = '{"timestamp":0,"input_length":3,"output_length":1,"hash_ids":[0]}\n'
    assert read(tmp_path, f"\n{row}  \n{row}").skipped == {"blank line": 2}


def test_token_limit_is_inclusive(tmp_path: Path) -> None:
    assert only(read(tmp_path, f"{OWN}\n0,10000000,1\n")).num_prompt_tokens.tolist() == [10**7]


def test_many_blocks_of_csv_keep_their_order(tmp_path: Path) -> None:
    n = 150_000  # more than two of the blocks in which arrow reads a file
    trace = read(tmp_path, f"{OWN}\n" + "".join(f"{i},1,{i % 99 + 1}\n" for i in range(n)))
    assert (only(trace).arrival_ns == np.arange(n)).all()
    with pytest.raises(UserError, match=f"line {n + 2}: num_output_tokens is 0;"):
        read(tmp_path, f"{OWN}\n" + "0,1,1\n" * n + "0,1,0\n")


def test_parquet_of_other_integer_types(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    table = pa.table(
        {
            "note": ["a", "b"],
            "arrival_ns": pa.array([5, 9], pa.uint64()),
            "num_prompt_tokens": pa.array([1, 2], pa.int8()),
            "num_output_tokens": pa.array([3, 4], pa.uint32()),
            "max_tokens": pa.array([None, 7], pa.int16()),
        }
    )
    pq.write_table(table, path)
    chunk = only(open_trace(path))
    assert chunk.arrival_ns.tolist() == [0, 4]
    assert chunk.num_prompt_tokens.tolist() == [1, 2]
    assert chunk.max_tokens.tolist() == [-1, 7]


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("arrival_ns", pa.array([0, 2**64 - 1], pa.uint64()), "row 2: arrival_ns is 1844"),
        ("arrival_ns", pa.array([3, 2]), "row 2: arrival_ns is 2, earlier than 3 at .* row 1;"),
        ("arrival_ns", None, "column arrival_ns is missing; columns seen: num_prompt_tokens"),
        ("num_prompt_tokens", pa.array([1, -5]), "row 2: num_prompt_tokens is -5;"),
        ("num_prompt_tokens", pa.array([1, None]), "row 2: num_prompt_tokens is empty"),
        ("num_output_tokens", pa.array([1.0, 2.5]), "num_output_tokens has type double"),
        ("num_output_tokens", pa.array([0, 1]), "row 1: num_output_tokens is 0;"),
        ("max_tokens", pa.array([1, 0]), "row 2: max_tokens is 0;"),
        ("max_tokens", pa.array([None, 0]), "row 2: max_tokens is 0;"),
        ("max_tokens", pa.array(["a", "b"]), "max_tokens has type string"),
        ("content_ids", pa.array([[1], [2]]), "schema metadata kvtwin.content_block_tokens"),
    ],
)
def test_bad_parquet(tmp_path: Path, column: str, values: pa.Array | None, words: str) -> None:
    columns = {name: pa.array([1, 2]) for name in OWN.split(",")} | {column: values}
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({n: c for n, c in columns.items() if c is not None}), path)
    with pytest.raises(UserError, match=words):
        open_trace(path)


def test_empty_parquet(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({name: pa.array([], pa.int64()) for name in OWN.split(",")}), path)
    with pytest.raises(UserError, match="the trace is empty"):
        open_trace(path)


def test_registry_tells_the_truth() -> None:
    for name in FORMATS:
        module = load_format(name)
        assert module.SHAPE
        assert hasattr(module, "write") == (name in WRITABLE_FORMATS), name
