"""Recorded runs of vLLM's scheduler: reading the folder of one. The format is described in docs/vllm_v1.md."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtwin.traces import UserError

from .content import Span, spans_of
from .settings import SchedulerSettings

_TOKEN_BITS = 20  # token k of stream c is the integer c * 2**20 + k
_FIRST_UNNAMED_STREAM = 1 << 31
_DEFAULTS: dict[str, Any] = {
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
    "prefix_cache_retention_interval": 0,
}
_OTHER_KEYS = {
    "name",
    "about",
    "seed",
    "num_gpu_blocks",
    "max_model_len",
    "groups",
    "hash_algo",
    "on_stall",
    "max_steps",
    "tables",
    "events",
    "step_time",
}


@dataclass(frozen=True)
class RecordedRequest:
    """A line of trace.jsonl."""

    request_id: str
    arrival_step: int
    abort_step: int | None
    num_prompt_tokens: int
    max_tokens: int
    priority: int
    spans: list[Span]  # prompt and answer


@dataclass(frozen=True)
class Recording:
    """What was run, and where its steps are."""

    folder: Path
    settings: SchedulerSettings
    requests: list[RecordedRequest]
    has_tables: bool  # the rows have block tables in clear
    has_events: bool
    most_rows: int

    def rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The steps as recorded, each with its line number."""
        return _json_lines(self.folder, "steps.jsonl")


def read_recording(folder: Path) -> Recording:
    """The recorded run in `folder`: config.json, trace.jsonl, steps.jsonl, each perhaps with .gz behind its name.

    Raises UserError naming file, line and field.
    """
    if not folder.is_dir():
        raise UserError(
            f"{folder} is not a folder; give one with config.json, trace.jsonl and steps.jsonl"
        )
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UserError(f"{path}: is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise UserError(f"{path}: is {type(config).__name__}; it must be an object")
    settings = _settings(path, config)
    step_time = config.get("step_time")
    requests = [
        _request(f"{folder / 'trace.jsonl'}:{line}", number, fields, step_time)
        for number, (line, fields) in enumerate(_json_lines(folder, "trace.jsonl"))
    ]
    if not requests:
        raise UserError(f"{folder / 'trace.jsonl'}: there are no requests in it")
    return Recording(
        folder,
        settings,
        requests,
        has_tables=config.get("tables") == "full",
        has_events=config.get("events") == "full",
        most_rows=config.get("max_steps", 1_000_000),
    )


def _settings(path: Path, config: dict[str, Any]) -> SchedulerSettings:
    for key in config:
        if key not in _DEFAULTS and key not in _OTHER_KEYS:
            raise UserError(f"{path}: unknown key {key}")
    values = _DEFAULTS | {key: config[key] for key in _DEFAULTS if key in config}
    for key in ("num_gpu_blocks", "max_model_len"):
        values[key] = config.get(key)
    for key in (
        "num_gpu_blocks",
        "max_model_len",
        "block_size",
        "max_num_seqs",
        "max_num_batched_tokens",
    ):
        value = values[key]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(f"{path}: {key} is {value!r}; it must be a whole number from 1 on")
    if values["policy"] not in ("fcfs", "priority"):
        raise UserError(f"{path}: policy is {values['policy']!r}; it must be fcfs or priority")
    if config.get("hash_algo", "sha256") != "sha256":
        raise UserError(f"{path}: hash_algo is {config['hash_algo']!r}; only sha256 is known here")
    windows = []
    for group in config.get("groups", [{"type": "full"}]):
        kind = group.get("type") if isinstance(group, dict) else None
        window = group.get("window") if kind == "sliding" else None
        if kind not in ("full", "sliding") or (kind == "sliding" and not isinstance(window, int)):
            raise UserError(
                f"{path}: groups has {group!r}; it must be of type full, or sliding with a window"
            )
        if group.get("block_size", values["block_size"]) != values["block_size"]:
            raise UserError(
                f"{path}: groups has {group!r}; blocks must be of one size in all groups"
            )
        windows.append(window)
    return SchedulerSettings(windows=tuple(windows), **values)


def _json_lines(folder: Path, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    path = folder / name
    packed = folder / f"{name}.gz"
    if not path.exists() and packed.exists():
        path = packed
    try:
        with gzip.open(path, "rt") if path == packed else path.open() as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    fields = json.loads(line)
                except ValueError as error:
                    raise UserError(f"{path}:{number}: is not JSON: {error}") from error
                if not isinstance(fields, dict):
                    raise UserError(f"{path}:{number}: is no object")
                yield number, fields
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot be read: {reason}") from error


def _request(
    where: str, number: int, fields: dict[str, Any], step_time: float | None
) -> RecordedRequest:
    for key in ("request_id", "output_len"):
        if key not in fields:
            raise UserError(f"{where}: there is no {key}")
    if "arrival_step" in fields:
        arrival_step = fields["arrival_step"]
    elif "arrival_time" in fields and step_time:
        arrival_step = -int(-fields["arrival_time"] // step_time)
    else:
        raise UserError(
            f"{where}: there is no arrival_step, nor an arrival_time and a step_time in config.json"
        )
    try:
        prompt = _prompt(number, fields)
        stream = fields.get("output_stream", _FIRST_UNNAMED_STREAM + 2 * number + 1)
        num_prompt_tokens = sum(num for _, num in prompt)
        answer = (stream << _TOKEN_BITS, fields["output_len"])
        spans = spans_of(((0, first, num) for first, num in [*prompt, answer]), _TOKEN_BITS)
    except (TypeError, ValueError, KeyError) as error:
        raise UserError(f"{where}: the prompt cannot be read: {error!r}") from error
    for key, value, least in (
        ("arrival_step", arrival_step, 0),
        ("output_len", fields["output_len"], 1),
        ("the length of the prompt", num_prompt_tokens, 1),
    ):
        if not isinstance(value, int) or value < least:
            raise UserError(
                f"{where}: {key} is {value!r}; it must be a whole number from {least} on"
            )
    return RecordedRequest(
        str(fields["request_id"]),
        arrival_step,
        fields.get("abort_step"),
        num_prompt_tokens,
        fields["output_len"],
        fields.get("priority", 0),
        spans,
    )


def _prompt(number: int, fields: dict[str, Any]) -> list[Span]:
    """The prompt as runs of token ids, given in one of four ways."""
    if "prompt_token_ids" in fields:
        return [(token, 1) for token in fields["prompt_token_ids"]]
    if "prompt_segments" in fields:
        return [((c << _TOKEN_BITS) + start, num) for c, start, num in fields["prompt_segments"]]
    length = fields["prompt_len"]
    if "hash_ids" in fields:
        span = fields.get("hash_span", 512)
        return [
            (stream << _TOKEN_BITS, min(span, length - index * span))
            for index, stream in enumerate(fields["hash_ids"])
        ]
    return [((_FIRST_UNNAMED_STREAM + 2 * number) << _TOKEN_BITS, length)]
