"""The public Weka sessions, against ids counted one by one and the published hit figure."""

import json
from pathlib import Path

from format_cases import S, awaited, column, hits

from kvtwin.traces import open_trace, write_trace


def _hits_of_ids(paths: list[Path], by_model: bool) -> tuple[int, int]:
    """Leading ids of calls with output that were seen before in the file, and all of their ids."""
    num_hits = num_ids = 0
    for path in paths:
        seen: set[tuple[str, int]] = set()
        waiting = json.loads(path.read_text())["requests"]
        while waiting:
            request = waiting.pop(0)
            if request["type"] == "subagent":
                waiting = request["requests"] + waiting
            elif request["out"]:
                model = request["model"] if by_model else ""
                ids = [(model, i) for i in request["hash_ids"]]
                num_hits += next((n for n, i in enumerate(ids) if i not in seen), len(ids))
                num_ids += len(ids)
                seen.update(ids)
    return num_hits, num_ids


def test_public_sessions(shared_dir: Path) -> None:
    folder = shared_dir / "traces/weka"
    trace = open_trace(folder)
    assert trace.skipped == {"failed call, no output tokens": 2}
    assert trace.unknown_keys == {}
    assert trace.num_requests == 246 - 2
    assert sum(column(trace, "num_output_tokens")) == 132465
    blocks = sum(prompt // 64 for prompt in column(trace, "num_prompt_tokens"))
    assert (sum(hits(trace, 64)), blocks) == _hits_of_ids(sorted(folder.iterdir()), by_model=True)
    sessions = [chunk.sessions for chunk in trace.chunks]
    assert len({s for each in sessions if each is not None for s in each.session.tolist()}) == 14


def test_public_hit_figure(shared_dir: Path, tmp_path: Path) -> None:
    """The published 198108 of 216996 blocks count failed calls too and let all models share."""
    for path in (shared_dir / "traces/weka").iterdir():
        text = path.read_text().replace('"out":0,', '"out":1,')
        for model in ("claude-haiku-4-5-20251001", "claude-opus-4-5-20251101"):
            text = text.replace(f'"model":"{model}"', '"model":"one"')
        (tmp_path / path.name).write_text(text)
    trace = open_trace(tmp_path)
    assert trace.num_requests == 246
    blocks = sum(prompt // 64 for prompt in column(trace, "num_prompt_tokens"))
    assert (sum(hits(trace, 64)), blocks) == (198108, 216996)


def test_public_subagents(shared_dir: Path) -> None:
    """Of three parallel ones the parent's next call, at 228 s, waits for all."""
    trace = open_trace(shared_dir / "traces/weka/trace_0277.json")
    assert trace.num_requests == 53
    rows, think_ns = awaited(trace)[column(trace, "arrival_ns").index(228 * S)]
    assert len(rows) == 4
    assert think_ns == (228 * 1000 - 211_347) * 10**6


def test_public_sessions_in_our_own_format(shared_dir: Path, tmp_path: Path) -> None:
    """Forks, joins, think times and what prompts share come back from Parquet."""
    trace = open_trace(shared_dir / "traces/weka/trace_0291.json")
    assert write_trace(trace, tmp_path / "own.parquet", "kvtwin-parquet") == ()
    back = open_trace(tmp_path / "own.parquet")
    for name in ("arrival_ns", "num_prompt_tokens", "num_output_tokens", "max_tokens"):
        assert column(back, name) == column(trace, name)
    assert awaited(back) == awaited(trace)
    assert hits(back) == hits(trace)
    assert sum(hits(back)) > 0
