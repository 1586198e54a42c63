"""Recorded runs of vLLM's own scheduler: the policy must do the same, in every field of every step.

tests/golden holds small ones, recorded by record_vllm.py; the reference data beside the project holds others.
"""

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from golden_replays import GOLDEN, replay, unpack

from kvtwin.sim.vllm_v1.recording import read_recording
from kvtwin.sim.vllm_v1.replay import Replay, readings

OWN = sorted(path.parent.name for path in GOLDEN.glob("*/config.json"))
REFERENCE = (
    "s00_tiny",
    "s01_no_pressure",
    "s02_preempt",
    "s03_chunked_on",
    "s05_prefix_chat",
    "s06_edges",
    "s07_max_num_seqs",
    "s09_block_1",
    "s12_priority",
    "s16_hybrid_swa",
    "s18_large_2000",
)


def num_rows(folder: Path) -> int:
    packed = folder / "steps.jsonl.gz"
    if packed.exists():
        return len(gzip.decompress(packed.read_bytes()).splitlines())
    return len((folder / "steps.jsonl").read_bytes().splitlines())


@pytest.mark.parametrize("name", OWN)
def test_own_recordings_replay_equal(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = replay(GOLDEN / name, capsys)
    assert (code, output.strip()) == (
        0,
        f"{GOLDEN / name}: {num_rows(GOLDEN / name)} rows compared, all equal",
    )


@pytest.mark.parametrize("name", REFERENCE)
def test_reference_recordings_replay_equal(
    name: str, shared_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shared_dir / "golden" / "vllm_v1" / name
    code, output = replay(folder, capsys)
    assert (code, output.strip()) == (0, f"{folder}: {num_rows(folder)} rows compared, all equal")


def test_own_recordings_use_every_setting() -> None:
    """Each rule that a setting switches is exercised by a recording that the project carries."""
    configs = [json.loads((GOLDEN / name / "config.json").read_text()) for name in OWN]
    for key in (
        "async_scheduling",
        "enable_chunked_prefill",
        "groups",
        "long_prefill_token_threshold",
        "long_prefill_token_threshold_adaptive",
        "max_num_active_seqs",
        "policy",
        "prefix_cache_retention_interval",
        "scheduler_reserve_full_isl",
        "watermark",
    ):
        assert any(config.get(key) for config in configs) or any(
            config.get(key) is False for config in configs
        ), key
    assert sum(path.stat().st_size for path in GOLDEN.rglob("*.gz")) < 300_000


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A recording that may be changed, its steps unpacked."""
    unpack("async_window_hits", tmp_path)
    return tmp_path


def change_row(folder: Path, number: int, field: str, value: Any) -> None:
    path = folder / "steps.jsonl"
    lines = path.read_text().splitlines()
    lines[number - 1] = json.dumps({**json.loads(lines[number - 1]), field: value})
    path.write_text("".join(line + "\n" for line in lines))


@pytest.mark.parametrize(
    ("field", "value"), [("fq", "0" * 16), ("cached", 1 << 20), ("arrive", ["nobody"]), ("new", 1)]
)
def test_a_difference_is_reported_with_its_field(
    field: str, value: Any, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change_row(copied, 40, field, value)
    code, output = replay(copied, capsys)
    assert code == 1
    assert "40 rows compared, the last one differs (line 40)" in output
    assert f"  {field}: recorded {json.dumps(value, separators=(',', ':'))}" in output
    assert output.count(": recorded ") == 1


def test_events_may_be_told_with_the_update(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The format does not say where events go of a schedule behind which no step was processed."""
    path = copied / "steps.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    num_moved = 0
    for row, following in pairwise(rows):
        if "upd" not in row:
            num_moved += row["store"] + row["evict"]
            following["store"] += row["store"]
            following["evict"] += row["evict"]
            row["store"] = row["evict"] = 0
            events = row.pop("events", []) + following.get("events", [])
            if events:
                following["events"] = events
    assert num_moved > 0
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, output = replay(copied, capsys)
    assert code == 0, output


def test_rows_that_are_missing_are_a_difference(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (copied / "steps.jsonl").read_text().splitlines(keepends=True)
    (copied / "steps.jsonl").write_text("".join(lines[:-3]))
    code, output = replay(copied, capsys)
    assert code == 1
    step = json.loads(lines[-3])["step"]
    assert f"{len(lines) - 3} rows compared, and step {step} is not among them" in output


def test_the_order_of_tables_is_that_of_the_running(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copied / "steps.jsonl"
    row = json.loads(path.read_text().splitlines()[39])
    assert len(row["tables"]) > 1
    change_row(copied, 40, "tables", dict(reversed(row["tables"].items())))
    code, output = replay(copied, capsys)
    assert code == 1
    assert "40 rows compared, the last one differs (line 40)\n  tables: recorded {" in output
    assert output.count(": recorded ") == 1


def changed(value: Any) -> Any:
    """Something else of the same type, changed in its last leaf."""
    if isinstance(value, dict):
        key = list(value)[-1]
        return {**value, key: changed(value[key])}
    if isinstance(value, list):
        return [*value[:-1], changed(value[-1])] if value else [0]
    if isinstance(value, str):
        return value + "0"
    return 1 if value is None else value + 1


@pytest.mark.parametrize("name", OWN)
def test_no_field_of_any_row_is_left_out(name: str) -> None:
    """However the format is read: one changed value, or one field less, and no reading holds in all rows."""
    recording = read_recording(GOLDEN / name)
    recorded = [row for _, row in recording.rows()]
    replays = [list(Replay(recording, reading).rows()) for reading in readings(recording)]
    assert recorded in replays
    computes_nothing = {row["step"] for row in recorded if "sched" not in row}
    num_changed = 0
    for number, row in enumerate(recorded):
        others = [rows[number] for rows in replays]
        # Only a reading whose other rows all agree could accept a row of its own.
        agreeing = [
            other
            for rows, other in zip(replays, others, strict=True)
            if rows[:number] == recorded[:number] and rows[number + 1 :] == recorded[number + 1 :]
        ]
        for field in row:
            assert {**row, field: changed(row[field])} not in agreeing, (row["step"], field)
            # Open is whether news of steps that are not run are told, and whether what computes nothing is processed.
            # All other fields must be there.
            if field not in ("arrive", "reject", "abort") and not (
                field == "upd" and row["upd"] in computes_nothing
            ):
                assert {key: row[key] for key in row if key != field} not in agreeing
            num_changed += 1
    assert num_changed > 10 * len(recorded)
