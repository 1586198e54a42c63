"""The same accidents in a file of every flat format: one clear line with its place, or no harm."""

import json
from pathlib import Path

import pytest

from kvtwin.traces import ReadOptions, Trace, UserError, open_trace

COLUMNS = {"arrival": "t:ms", "prompt": "in", "output": "out"}
# Rows of each format: name, two rows as (field, text) pairs, the first field is the time.
CSV = {
    "azure": [
        ("TIMESTAMP", "2023-11-16 18:17:03.9799600", "2023-11-16 18:17:04.0319600"),
        ("ContextTokens", "4808", "3180"),
        ("GeneratedTokens", "10", "8"),
    ],
    "burstgpt": [
        ("Timestamp", "5", "45.5"),
        ("Request tokens", "472", "1087"),
        ("Response tokens", "18", "230"),
    ],
    "vidur": [
        ("arrived_at", "0.0", "4.314579"),
        ("num_prefill_tokens", "374", "396"),
        ("num_decode_tokens", "44", "109"),
    ],
    "kvtwin-csv": [
        ("arrival_ns", "0", "4314"),
        ("num_prompt_tokens", "374", "396"),
        ("num_output_tokens", "44", "109"),
    ],
    "columns": [("t", "0.5", "7"), ("in", "374", "396"), ("out", "44", "109")],
}
_LENGTHS = {"input_length": 600, "output_length": 5}
JSON = {
    "mooncake": {"timestamp": 7, **_LENGTHS, "hash_ids": [0, 2**64 - 1]},
    "mooncake-sessions": {"timestamp": 7, **_LENGTHS, "hash_ids": [0, 2**64 - 1]},
    "mooncake-delta": {"timestamp": 7, **_LENGTHS, "hash_ids": [0, 2**64 - 1]},
    "bailian": {"timestamp": 7, "input_length": 20, "output_length": 5, "hash_ids": [0, 2**64 - 1]},
}


def csv_text(name: str, field: int = -1, value: str = "", drop: int = -1, extra: str = "") -> str:
    """Header and two rows, with `value` in `field` of the second, without column `drop`."""
    columns = [list(column) for column in CSV[name]]
    if field >= 0:
        columns[field][2] = value
    if extra:
        columns.append([extra, "1", "2"])
    if drop >= 0:
        del columns[drop]
    return "".join(",".join(column[i] for column in columns) + "\n" for i in range(3))


def json_row(name: str, number: int, **changes: object) -> str:
    row: dict[str, object] = dict(JSON[name])
    if name == "bailian":
        row |= {"chat_id": number, "parent_chat_id": -1}
    elif name != "mooncake":
        row |= {"session_id": number}
    row |= changes
    return json.dumps({key: value for key, value in row.items() if value is not None}) + "\n"


def read(path: Path, name: str, text: str | bytes) -> Trace:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return open_trace(path, name, ReadOptions(columns=COLUMNS if name == "columns" else {}))


def line_of(path: Path, name: str, text: str | bytes) -> str:
    """The message, after the path."""
    with pytest.raises(UserError) as caught:
        read(path, name, text)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message.removeprefix(str(path))


@pytest.mark.parametrize("name", CSV)
@pytest.mark.parametrize("field", [0, 1, 2])
@pytest.mark.parametrize(
    "value", ["", "x", "nan", "inf", "-1", "1e999", "true", "[]", "9" * 30, "0x10"]
)
def test_values_of_csv(tmp_path: Path, name: str, field: int, value: str) -> None:
    message = line_of(tmp_path / "t", name, csv_text(name, field, value))
    assert message.startswith(f" line 3: {CSV[name][field][0]} is "), message


@pytest.mark.parametrize("name", CSV)
def test_lines_of_csv(tmp_path: Path, name: str) -> None:
    path, good = tmp_path / "t", csv_text(name)
    assert line_of(path, name, good[: good.rindex(",")]).startswith(" line 3: 2 columns where")
    assert line_of(path, name, good + "1,1,1,1\n").startswith(" line 4: 4 columns where")
    for drop in range(1 if name == "vidur" else 0, 3):  # Vidur's lengths need no times
        column = CSV[name][drop][0]
        message = line_of(path, name, csv_text(name, drop=drop))
        assert message.startswith(f" line 1: column {column} is missing")
    assert read(path, name, csv_text(name, extra="region")).unknown_keys == {"region": 2}
    assert line_of(path, name, good.encode() + b"\xff\xfe,\x00\n").startswith(" line 4: ")
    twice = good.replace(CSV[name][1][0], CSV[name][2][0])
    assert "line 1: column" in line_of(path, name, twice)


@pytest.mark.parametrize("name", JSON)
@pytest.mark.parametrize("key", ["timestamp", "input_length", "output_length", "hash_ids"])
@pytest.mark.parametrize(
    "value", ["x", True, float("nan"), float("inf"), -1, 10**400, {}, [], [0], [0, 1, 2], [0, -1]]
)
def test_values_of_json(tmp_path: Path, name: str, key: str, value: object) -> None:
    text = json_row(name, 1) + json_row(name, 2, **{key: value})
    message = line_of(tmp_path / "t", name, text)
    assert message.startswith(" line 2: ")
    assert key in message


@pytest.mark.parametrize("name", JSON)
def test_lines_of_json(tmp_path: Path, name: str) -> None:
    path, good = tmp_path / "t", json_row(name, 1)
    cut = json_row(name, 2)[:30]
    assert line_of(path, name, good + cut).startswith(" line 2: not one complete JSON object")
    assert line_of(path, name, good + cut + "\n" + good).startswith(" line 2: not one complete")
    for key in ("timestamp", "input_length", "output_length"):
        message = line_of(path, name, good + json_row(name, 2, **{key: None}))
        assert message.startswith(" line 2: ")
        assert key in message
    assert read(path, name, good + json_row(name, 2, region=1)).unknown_keys == {"region": 1}
    for ids in ([0, 2**64], [0, 0.5], [0, None]):
        assert "below 2^64" in line_of(path, name, good + json_row(name, 2, hash_ids=ids))
    huge = read(path, name, good).chunks[0].content
    assert huge is not None
    assert len(set(huge.streams.tolist())) >= 2  # an id of 64 bits is not another one of 32


@pytest.mark.parametrize("name", [*CSV, *JSON])
def test_files_as_such(tmp_path: Path, name: str) -> None:
    path = tmp_path / "t"
    good = csv_text(name) if name in CSV else json_row(name, 1) + json_row(name, 2)
    plain = read(path, name, good)
    for same in ("\ufeff" + good, good.replace("\n", "\r\n"), good.rstrip("\n")):
        again = read(path, name, same)
        assert again.num_requests == 2
        for column in ("arrival_ns", "num_prompt_tokens", "num_output_tokens"):
            assert getattr(again.chunks[0], column).tolist() == (
                getattr(plain.chunks[0], column).tolist()
            )
    assert line_of(path, name, b"") == ": the file is empty; a trace has at least one request"
    line_of(path, name, bytes(range(256)) * 20)
    line_of(path, name, "\x00" * 100)
    path.unlink()
    path.mkdir()
    options = ReadOptions(columns=COLUMNS if name == "columns" else {})
    with pytest.raises(UserError, match="is a directory"):
        open_trace(path, name, options)
