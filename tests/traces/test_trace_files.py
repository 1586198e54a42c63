"""Files as such: compressed, long, folders, and what a reader says beside requests."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
from format_cases import column, failure, lengths, read, write

from kvtwin.traces import UserError, open_trace, scan_trace
from kvtwin.traces.formats import detect, source

VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
AZURE = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
MOONCAKE = '{"timestamp":0,"input_length":3,"output_length":1,"hash_ids":[0]}\n'


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("pack", [gzip.compress, zstd], ids=["gz", "zst"])
@pytest.mark.parametrize("text", [VIDUR + "0,5,6\n1,7,8", MOONCAKE * 3], ids=["csv", "jsonl"])
def test_compressed_files_are_read_as_they_are(tmp_path: Path, pack: object, text: str) -> None:
    data = text.encode()
    packed = pack(data)  # type: ignore[operator]
    # What a file is called does not matter to what it is, but its ending is not part of the name.
    for name in ("some.trace.csv.gz", "some.trace.zst", "some.trace"):
        (tmp_path / name).write_bytes(packed)
        trace = open_trace(tmp_path / name)
        (tmp_path / "plain.csv").write_bytes(data)
        plain = open_trace(tmp_path / "plain.csv")
        assert trace.format == plain.format
        assert lengths(trace) == lengths(plain)
        assert trace.name.startswith("some")
    assert open_trace(tmp_path / "some.trace.csv.gz", None).num_requests == plain.num_requests


def test_gzip_members_one_behind_the_other(tmp_path: Path) -> None:
    (tmp_path / "t.gz").write_bytes(gzip.compress(VIDUR.encode()) + gzip.compress(b"0,5,6\n"))
    assert lengths(open_trace(tmp_path / "t.gz")) == [(5, 6)]


@pytest.mark.parametrize("cut", [3, 20, -5])
def test_truncated_archives(tmp_path: Path, cut: int) -> None:
    packed = gzip.compress((VIDUR + "0,5,6\n" * 50).encode())
    assert "cannot be decompressed" in failure(tmp_path / "t.trace", packed[:cut])


def test_damaged_archives(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress((VIDUR + "0,5,6\n" * 5000).encode()))
    packed[-6] ^= 255  # the checksum
    assert "cannot be decompressed" in failure(tmp_path / "t.trace", bytes(packed))


def test_a_line_of_100_megabytes(tmp_path: Path) -> None:
    for head, limit in ((MOONCAKE, "67,108,864"), (VIDUR + "0,5,6\n", "1,048,576")):
        line = head.count("\n") + 1
        # Compressed, so that the test writes little.
        with gzip.open(tmp_path / "t.gz", "wb", compresslevel=1) as file:
            file.write(head.encode())
            for _ in range(100):
                file.write(b"1" * 10**6)
        message = failure(tmp_path / "t.gz")
        assert f" line {line}: the line has more bytes than the limit of {limit}" in message


def test_folders_and_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a directory without a known kind of trace"):
        open_trace(tmp_path)
    with pytest.raises(UserError, match="is a directory; name a trace file"):
        open_trace(tmp_path, "azure")
    with pytest.raises(UserError, match=r"none\.csv does not exist"):
        open_trace(tmp_path / "none.csv")


def test_unknown_columns_and_keys_are_counted(tmp_path: Path) -> None:
    header = VIDUR[:-1] + ",region,\n"
    trace = read(tmp_path / "t.csv", header + "0,1,1,eu,\n1,1,1,us,\n")
    assert trace.unknown_keys == {"region": 2}
    rows = MOONCAKE + MOONCAKE.replace("}", ',"user":1}')
    assert read(tmp_path / "t.jsonl", rows).unknown_keys == {"user": 1}


def test_images_of_the_multimodal_trace_are_known(tmp_path: Path) -> None:
    rows = "2024-10-15T12:00:00.269Z,1,10,20\n2024-10-15T12:00:01.300Z,0,30,40\n"
    trace = read(tmp_path / "t.csv", AZURE + rows)
    assert (trace.format, trace.unknown_keys) == ("azure", {})
    assert column(trace, "arrival_ns") == [0, 1_031_000_000]
    assert lengths(trace) == [(10, 20), (30, 40)]


@pytest.mark.parametrize(
    "header",
    ["num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio", "PromptTokenCount,x,y,z"],
)
def test_vidur_lengths_have_no_arrivals(tmp_path: Path, header: str) -> None:
    header = header.replace("x,y,z", "GeneratedTokenCount,num_total_tokens,pd_ratio")
    trace = read(tmp_path / "t.csv", header + "\n74,918,992,0.08\n290,905,1195,0.32\n")
    assert (trace.format, lengths(trace)) == ("vidur", [(74, 918), (290, 905)])
    assert trace.saturated
    assert trace.notes == ("the file has lengths only, no arrivals: all requests arrive at once",)
    assert trace.unknown_keys == {}
    assert " line 3: " in failure(tmp_path / "t.csv", header + "\n1,1,2,1\n1,0,1,1\n")


def test_reading_stops_where_no_more_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_READ_BYTES", 1000)
    path = write(tmp_path / "t.csv", VIDUR + "5,1,1\n" * 400 + "broken\n")
    assert open_trace(path, most=250).num_requests == 250
    with scan_trace(path) as scan:
        assert next(scan.chunks).num_requests < 200
    assert "line 402: 1 columns" in failure(path)


def test_order_is_checked_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_READ_BYTES", 10)
    message = failure(tmp_path / "t.csv", VIDUR + "5,1,1\n\n" * 20 + "4,1,1\n")
    assert " line 42: arrived_at is 4, earlier than 5 at " in message
    assert message.endswith(" line 40; sort the file by arrived_at")


@pytest.mark.parametrize("num_bytes", [3, 7, 100])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("start", ["", "\ufeff", "\n\n"])
def test_blocks_of_any_length_hold_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_bytes: int, end: str, start: str
) -> None:
    text = start + VIDUR + "".join(f"{i},{i + 1},{i + 2}\n" for i in range(12)) + "\n12,1,1"
    path = write(tmp_path / "t.csv", text.replace("\n", end))
    whole = open_trace(path)
    monkeypatch.setattr(source, "_READ_BYTES", num_bytes)
    trace = open_trace(path)
    assert (lengths(trace), trace.skipped) == (lengths(whole), whole.skipped)
    assert column(trace, "arrival_ns") == [i * 10**9 for i in range(13)]
    assert "line" in failure(path, (text + "x").replace("\n", end))


def test_hexadecimal_in_a_block_of_numbers_is_no_number(tmp_path: Path) -> None:
    assert "line 3: num_decode_tokens is 0x10" in failure(
        tmp_path / "t.csv", VIDUR + "0,1,1\n0,1,0x10\n"
    )


@pytest.mark.parametrize("num_tokens", [1, 200_000])
def test_a_first_line_beyond_the_first_mebibyte(tmp_path: Path, num_tokens: int) -> None:
    """Agentic rows hold all token ids of a session, and a Weka session may be a line of many."""
    ids = {"input_tok_ids": list(range(num_tokens)), "output_tok_ids": [7]}
    call = {"input_toks": num_tokens, "output_toks": 1, **ids}
    agentic = json.dumps({"arrival_time_ns": 0, "sub_requests": [call]}) + "\n"
    trace = read(tmp_path / "a.jsonl", agentic * 2)
    assert trace.format == "llmservingsim"
    assert lengths(trace) == [(num_tokens, 1)] * 2
    request = {"t": 0, "type": "n", "in": 64, "out": 1, "hash_ids": [1]}
    session = {"block_size": 64, "requests": [request], "note": "x" * 10 * num_tokens}
    for ending in ("\n", ""):
        trace = read(
            tmp_path / "w.jsonl", json.dumps(session) + "\n" + json.dumps(session) + ending
        )
        assert trace.format == "weka"
        assert lengths(trace) == [(64, 1)] * 2


def test_a_first_line_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "MAX_LINE_BYTES", 1000)
    message = failure(tmp_path / "t.jsonl", '{"timestamp": "' + "x" * 1000)
    assert " line 1: the line has more bytes than the limit of 1,000;" in message
    assert " line 1: not one complete JSON object" in failure(tmp_path / "t.jsonl", '{"a": "')
