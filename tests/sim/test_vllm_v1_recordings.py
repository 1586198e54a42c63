"""Folders that are no recorded run of vLLM's scheduler: one line says what is wrong, and where."""

import json
from pathlib import Path
from typing import Any

import pytest
from golden_replays import replay, unpack


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A recording that may be changed, its steps unpacked."""
    unpack("async_window_hits", tmp_path)
    return tmp_path


CONFIG = {"num_gpu_blocks": 9, "max_model_len": 9, "block_size": 4}
LINE = {"request_id": "a", "arrival_step": 0, "prompt_len": 3, "output_len": 2}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"num_gpu_blocks": 0},
            "num_gpu_blocks is 0; it must be a whole number from 1 to 16777216",
        ),
        ({"num_gpu_blocks": 1 << 25}, "num_gpu_blocks is 33554432"),
        ({"max_num_active_seqs": "x"}, "max_num_active_seqs is 'x'; it must be a whole number"),
        ({"max_num_seqs": True}, "max_num_seqs is True"),
        ({"max_steps": 1.5}, "max_steps is 1.5"),
        ({"watermark": "x"}, "watermark is 'x'; it must be a number from 0 to 1"),
        ({"watermark": -0.1}, "watermark is -0.1"),
        ({"step_time": 0}, "step_time is 0; it must be a number from 1e-09 to 1e+09"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold is -1"),
        ({"async_scheduling": "no"}, "async_scheduling is 'no'; it must be true or false"),
        ({"prefix_cache_retention_interval": 6}, "it must be a multiple of block_size, 4"),
        ({"tables": "some"}, "tables is 'some'; it must be digest or full"),
        ({"on_stall": "wait"}, "on_stall is 'wait'; it must be abort_head"),
        ({"policy": ["fcfs"]}, "policy is ['fcfs']; it must be fcfs or priority"),
        ({"blocks": 1}, "unknown key blocks"),
        ({"groups": 5}, "groups is 5; it must be a list"),
        ({"groups": []}, "groups is []; it must be a list"),
        ({"groups": [{"type": "sliding", "window": 0}]}, "with a window of 1 token or more"),
        ({"groups": [{"type": "full", "window": 3}]}, "must be of type full, or sliding"),
        (
            {"groups": [{"type": "full"}, {"type": "full", "block_size": 8}]},
            "blocks must be of one size in all groups, here 4",
        ),
    ],
)
def test_a_bad_config_is_one_line(
    fields: dict[str, Any], problem: str, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied / "config.json").write_text(json.dumps(CONFIG | fields))
    assert_one_line(copied, f"{copied / 'config.json'}: ", problem, capsys)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"request_id": None}, "request_id is None; it must be a text"),
        ({"request_id": "b"}, "request_id is 'b', that of line 1; each needs one of its own"),
        ({"arrival_step": -1}, "arrival_step is -1; it must be a whole number from 0 to"),
        ({"output_len": None}, "output_len is None; it must be a whole number from 1 to 1048576"),
        ({"output_stream": 1.5}, "output_stream is 1.5"),
        ({"abort_step": "x"}, "abort_step is 'x'"),
        ({"priority": "x"}, "priority is 'x'"),
        ({"prompt_len": 0}, "the prompt is [(2147483650, 0, 0)]"),
        ({"prompt_len": "3"}, "the prompt is [(2147483650, 0, '3')]"),
        ({"prompt_segments": [[1, 1048570, 7]]}, "the prompt is [(1, 1048570, 7)]"),
        ({"prompt_segments": [[1, 2]]}, "the prompt cannot be read"),
        ({"prompt_segments": [[1, 0, 0]]}, "the prompt is []"),
        ({"prompt_token_ids": [1.5]}, "the prompt is [(0.0, 1.5, 1)]"),
        ({"prompt_token_ids": [-1]}, "the prompt is [(-1, 1048575, 1)]"),
        ({"hash_ids": [1], "hash_span": 2}, "2 spans of 2 tokens, 1 hash_ids"),
        ({"hash_ids": [1], "hash_span": 0}, "the prompt cannot be read"),
    ],
)
def test_a_bad_request_is_one_line(
    fields: dict[str, Any], problem: str, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (LINE | {"request_id": "b"}, LINE | fields)
    (copied / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert_one_line(copied, f"{copied / 'trace.jsonl'}:2: ", problem, capsys)


@pytest.mark.parametrize(
    ("name", "text", "where", "problem"),
    [
        ("config.json", "{", "", "is not JSON"),
        ("config.json", "[" * 100_000, "", "is not JSON"),
        ("config.json", "[]", "", "is list; it must be an object"),
        ("trace.jsonl", "", "", "there are no requests"),
        ("trace.jsonl", "{}\n", ":1", "request_id is None"),
        ("trace.jsonl", "[" * 100_000, ":1", "is not JSON"),
        ("steps.jsonl", "[]\n", ":1", "is no object"),
    ],
)
def test_a_bad_file_is_one_line(
    name: str,
    text: str,
    where: str,
    problem: str,
    copied: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (copied / name).write_text(text)
    assert_one_line(copied, f"{copied / name}{where}: ", problem, capsys)


def test_pieces_without_tokens_are_nothing(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor do they part what continues across them."""
    path = copied / "trace.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    num_parted = 0
    for line in lines:
        if "prompt_segments" in line:
            (stream, start, num), *others = line["prompt_segments"]
            parted = [[stream, start, 1], [77, 3, 0], [stream, start + 1, num - 1]]
            line["prompt_segments"] = [*parted, *others]
            num_parted += num > 1
    assert num_parted > 0
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert replay(copied, capsys)[0] == 0


def assert_one_line(
    folder: Path, where: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output = replay(folder, capsys)
    assert code == 2
    assert output.startswith(f"kvtwin: {where}")
    assert problem in output
    assert output.count("\n") == 1
