"""Every kind of broken file: one line that names the file, the line and what is wrong."""

import json
from pathlib import Path

import pytest

from kvtwin.traces import UserError, open_trace

VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
STAMP = "2023-11-16 18:17:03.9799600"
OWN = "arrival_ns,num_prompt_tokens,num_output_tokens,max_tokens\n"
GOOD_ROW = '{"timestamp":0,"input_length":3,"output_length":1,"hash_ids":[0]}\n'


def mooncake(**changes: object) -> str:
    row = {"timestamp": 7, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]} | changes
    return json.dumps({key: value for key, value in row.items() if value is not None}) + "\n"


# (what is wrong, content, where, words that must be in the message)
CASES: list[tuple[str, str | bytes, str, tuple[str, ...]]] = [
    # token counts
    ("negative", VIDUR + "0,1,1\n1,5,-3\n", " line 3: ", ("num_decode_tokens is -3", "at least 1")),
    ("zero", VIDUR + "0,0,1\n", " line 2: ", ("num_prefill_tokens is 0", "fix or remove")),
    ("zero output", AZURE + f"{STAMP},5,0\r\n", " line 2: ", ("GeneratedTokens is 0",)),
    ("fractional", VIDUR + "0,12.5,1\n", " line 2: ", ("is 12.5", "whole number")),
    ("exponent", VIDUR + "0,1e3,1\n", " line 2: ", ("is 1e3", "whole number")),
    ("hexadecimal", VIDUR + "0,0x10,1\n", " line 2: ", ("is 0x10", "whole number")),
    ("text", VIDUR + "0,many,1\n", " line 2: ", ("is many", "whole number")),
    ("empty value", VIDUR + "0,1,\n", " line 2: ", ("num_decode_tokens is empty",)),
    ("nan", VIDUR + "0,nan,1\n", " line 2: ", ("is nan", "whole number")),
    ("inf", VIDUR + "0,inf,1\n", " line 2: ", ("is inf", "10,000,000")),
    ("absurd", VIDUR + "0,10000001,1\n", " line 2: ", ("is 10000001", "limit is 10,000,000")),
    ("u64", VIDUR + "0,1,18446744073709551616\n", " line 2: ", ("10,000,000",)),
    ("absurd before text", VIDUR + "0,99999999,1\n0,x,1\n", " line 2: ", ("10,000,000",)),
    ("null byte", VIDUR + "0,1\0,1\n", " line 2: ", ("num_prefill_tokens",)),
    ("long value", VIDUR + f"0,{'9' * 5000},1\n", " line 2: ", ("5000 characters",)),
    # times
    ("negative time", VIDUR + "-1.5,1,1\n", " line 2: ", ("arrived_at is -1.5", "from 0")),
    ("time nan", VIDUR + "0,1,1\nNaN,1,1\n", " line 3: ", ("arrived_at is NaN", "seconds")),
    ("time inf", VIDUR + "1e999999999,1,1\n", " line 2: ", ("arrived_at", "limit")),
    ("time absurd", VIDUR + "1000000001,1,1\n", " line 2: ", ("1,000,000,000 s",)),
    ("time text", VIDUR + "noon,1,1\n", " line 2: ", ("arrived_at is noon",)),
    ("time empty", VIDUR + ",1,1\n", " line 2: ", ("arrived_at is empty",)),
    (
        "old names",
        "Time,PromptTokenCount,GeneratedTokenCount\nx,1,1\n",
        " line 2: ",
        ("Time is x",),
    ),
    ("date", AZURE + "16.11.2023,1,1\r\n", " line 2: ", ("TIMESTAMP is 16.11.2023", "YYYY-MM-DD")),
    ("month", AZURE + f"{STAMP},1,1\r\n2023-13-01 00:00:00,1,1\r\n", " line 3: ", ("2023-13-01",)),
    ("day", AZURE + "2023-02-30 00:00:00,1,1\r\n", " line 2: ", ("2023-02-30",)),
    ("hour", AZURE + "2023-02-03 24:00:01,1,1\r\n", " line 2: ", ("24:00:01",)),
    ("digits", AZURE + f"{STAMP}000,1,1\r\n", " line 2: ", ("YYYY-MM-DD",)),
    ("zone", AZURE + f"{STAMP},1,1\r\n{STAMP}+99:99,1,1", " line 3: ", ("+99:99", "+23:59")),
    ("zone hour", AZURE + f"{STAMP}-24:00,1,1", " line 2: ", ("-24:00", "-23:59")),
    ("zone minute", AZURE + f"{STAMP}+0160,1,1", " line 2: ", ("+0160", "a zone from")),
    ("half a zone", AZURE + f"{STAMP}+01,1,1", " line 2: ", ("+01;", "a zone from")),
    ("zone name", AZURE + f"{STAMP}UTC,1,1", " line 2: ", ("UTC;", "a zone from")),
    ("span", AZURE + f"{STAMP},1,1\r\n2056-01-01 00:00:00,1,1", " line 3: ", ("1,000,000,000 s",)),
    (
        "unsorted",
        VIDUR + "5,1,1\n7,1,1\n6.5,1,1\n",
        " line 4: ",
        ("6.5", "7 at", " line 3;", "sort"),
    ),
    ("unsorted azure", AZURE + f"{STAMP},1,1\r\n2022{STAMP[4:]},1,1", " line 3: ", (" line 2;",)),
    ("unsorted by zone", AZURE + f"{STAMP},1,1\r\n{STAMP}+01:00,1,1", " line 3: ", ("sort",)),
    ("own time", OWN + "1.5,1,1,\n", " line 2: ", ("arrival_ns is 1.5", "whole nanoseconds")),
    ("own u64 time", OWN + "18446744073709551616,1,1,\n", " line 2: ", ("limit",)),
    ("own unsorted", OWN + "5,1,1,\n4,1,1,\n", " line 3: ", ("arrival_ns is 4",)),
    ("own max_tokens", OWN + "5,1,1,9\n5,1,1,0\n", " line 3: ", ("max_tokens is 0",)),
    ("max_tokens -1", OWN + "5,1,1,-1\n", " line 2: ", ("max_tokens is -1",)),
    # lines
    ("CRLF", AZURE + f"{STAMP},1,1\r\n{STAMP},1,-1\r\n\r\n\r\n", " line 3: ", ("is -1",)),
    ("CR", AZURE.replace("\r\n", "\r") + f"{STAMP},1,1\r{STAMP},1,-1\r", " line 3: ", ("is -1",)),
    ("blank lines", "\n\n" + VIDUR + "\n0,1,1\n\n\n1,1,0\n\n", " line 8: ", ("is 0",)),
    ("BOM", b"\xef\xbb\xbf" + VIDUR.encode() + b"0,1,1\n0,1,0", " line 3: ", ("is 0",)),
    ("few columns", VIDUR + "0,1,1\n0,1\n", " line 3: ", ("2 columns", "header has 3")),
    ("many columns", VIDUR + "0,1,1\n0,1,1,1\n", " line 3: ", ("4 columns", "header has 3")),
    ("spaces only", VIDUR + "0,1,1\n\n  \n", " line 4: ", ("1 columns",)),
    ("quoted comma", VIDUR + '0,"1,0",1\n', " line 2: ", ("4 columns",)),
    ("not UTF-8", VIDUR.encode() + b"0,1,1\n0,\xff,1\n", " line 3: ", ("UTF-8",)),
    (
        "huge line",
        VIDUR + "0,1,1\n0,1," + "1" * 5_000_000 + "\n0,1,1\n",
        " line 3: ",
        ("bytes", "limit"),
    ),
    # columns and formats
    (
        "columns",
        "arrived_at,num_prefill_tokens\n0,1\n",
        " no known format",
        ("azure, ", "closest is vidur (CSV with num_prefill_tokens, num_decode_tokens, "),
    ),
    ("columns seen", "a,b\n0,1\n", " no known format", ("columns seen: a, b; formats: ",)),
    ("duplicate", VIDUR[:-1] + ",arrived_at\n0,1,1,0\n", " line 1: ", ("arrived_at", "twice")),
    ("two formats", VIDUR[:-1] + "," + OWN + "0,1,1,0,1,1,\n", " fits ", ("vidur and kvtwin-csv",)),
    ("no rows", VIDUR, ": the trace is empty", ("no rows",)),
    ("blank rows", AZURE + "\r\n\r\n", ": the trace is empty", ("no rows",)),
    ("empty file", b"", ": the file is empty", ()),
    ("blank file", b"\n\n \n", ": the file is empty", ()),
    ("binary", bytes(range(256)), " is a binary file", ("formats:",)),
    ("UTF-16", VIDUR.encode("utf-16"), " is a binary file", ()),
    ("broken parquet", b"PAR1" + bytes(100) + b"PAR1", ": cannot be read as Parquet", ()),
    # JSON lines
    ("truncated", GOOD_ROW + GOOD_ROW[:40], " line 2: ", ("complete JSON object",)),
    ("truncated first", GOOD_ROW[:40], " line 1: ", ("complete JSON object",)),
    ("array", GOOD_ROW + "[1]\n", " line 2: ", ("complete JSON object",)),
    ("nested", GOOD_ROW + "[" * 100_000, " line 2: ", ("complete JSON object",)),
    ("JSON not UTF-8", GOOD_ROW.encode() + b'{"a":"\xff"}', " line 2: ", ("JSON",)),
    ("JSON blank lines", f"\n{GOOD_ROW}\r\n\n{{}}", " line 5: ", ("timestamp is missing",)),
    ("JSON BOM", b"\xef\xbb\xbf" + (GOOD_ROW + "{}").encode(), " line 2: ", ("is missing",)),
    ("key", GOOD_ROW + mooncake(hash_ids=None), " line 2: ", ("hash_ids is missing", "timestamp")),
    (
        "other keys",
        '{"input_toks": 1}',
        " no known format",
        ("closest is llmservingsim (JSONL with input_toks, ",),
    ),
    ("JSON zero", mooncake(output_length=0), " line 1: ", ("output_length is 0",)),
    ("JSON fraction", mooncake(input_length=12.5), " line 1: ", ("input_length is 12.5",)),
    ("JSON text", mooncake(input_length="12"), " line 1: ", ('input_length is "12"',)),
    ("JSON bool", mooncake(output_length=True), " line 1: ", ("output_length is true",)),
    ("JSON u64", mooncake(output_length=2**64), " line 1: ", ("limit is 10,000,000",)),
    ("JSON long int", mooncake(output_length=10**4000), " line 1: ", ("output_length",)),
    ("JSON nan", mooncake(timestamp=float("nan")), " line 1: ", ("timestamp is NaN",)),
    ("JSON seconds", mooncake(timestamp=0.5), " line 1: ", ("0.5", "whole milliseconds")),
    ("JSON negative", mooncake(timestamp=-1), " line 1: ", ("timestamp is -1",)),
    ("JSON late", mooncake(timestamp=10**15), " line 1: ", ("1,000,000,000 s",)),
    ("JSON unsorted", mooncake() + mooncake(timestamp=6), " line 2: ", (" line 1;", "sort")),
    ("JSON ids", mooncake(hash_ids=[0]), " line 1: ", ("1 ids", "600 needs 2")),
    ("JSON id", mooncake(hash_ids=[0, 2**64]), " line 1: ", ("hash_ids is", "below 2^64")),
    ("JSON id sign", mooncake(hash_ids=[0, -1]), " line 1: ", ("below 2^64",)),
    ("JSON id list", mooncake(hash_ids=2), " line 1: ", ("below 2^64",)),
]


@pytest.mark.parametrize(
    ("content", "where", "words"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_names_the_place(
    tmp_path: Path, content: str | bytes, where: str, words: tuple[str, ...]
) -> None:
    path = tmp_path / "trace.data"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UserError) as caught:
        open_trace(path)
    message = str(caught.value)
    assert message.startswith(f"{path}"), message
    assert where in message
    for word in words:
        assert word in message
    assert "\n" not in message
    assert len(message) < 700


def test_message_is_the_documented_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("trace.csv").write_text(VIDUR + "0,5,5\n" * 15 + "0,5,-3\n")
    with pytest.raises(UserError) as caught:
        open_trace("trace.csv")
    assert str(caught.value) == (
        "trace.csv line 17: num_decode_tokens is -3; it must be a whole number of at least 1;"
        " fix or remove the row"
    )
    assert caught.value.exit_code == 2


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.csv does not exist"):
        open_trace(tmp_path / "none.csv")
    with pytest.raises(UserError, match="is a directory"):
        open_trace(tmp_path)
    with pytest.raises(UserError, match="is not a regular file"):
        open_trace("/dev/null")


def test_named_format_that_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(VIDUR + "0,1,1\n")
    with pytest.raises(UserError, match=r"line 1: column TIMESTAMP is missing; columns seen: arr"):
        open_trace(path, "azure")
    with pytest.raises(UserError, match="line 1: not one complete JSON object"):
        open_trace(path, "mooncake")
    with pytest.raises(UserError, match=r"is not a Parquet file; format kvtwin-parquet does not"):
        open_trace(path, "kvtwin-parquet")
    with pytest.raises(
        UserError, match=r"format is nonsense; it must be one of: azure, burstgpt, "
    ):
        open_trace(path, "nonsense")
