"""Recorded runs of vLLM's scheduler: reading the folder of one. The format is described in docs/vllm_v1.md."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtwin.traces import UserError

from .content import Span, spans_of
from .recorded_config import RecordedConfig, is_whole, read_config

_TOKEN_BITS = 20  # token k of stream c is the integer c * 2**20 + k
_STREAM_TOKENS = 1 << _TOKEN_BITS
_FIRST_UNNAMED_STREAM = 1 << 31
_MOST_STREAM = (1 << 33) - 1  # so that every token is below 2**53
_MOST_STEP = 1 << 53


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
    config: RecordedConfig
    requests: list[RecordedRequest]

    def rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The steps as recorded, each with its line number."""
        return _json_lines(self.folder, "steps.jsonl")


def read_recording(folder: Path) -> Recording:
    """The recorded run in `folder`: config.json, trace.jsonl, steps.jsonl, the latter two perhaps with .gz behind.

    Raises UserError naming file, line and field.
    """
    if not folder.is_dir():
        raise UserError(
            f"{folder} is not a folder; give one with config.json, trace.jsonl and steps.jsonl"
        )
    config = read_config(folder / "config.json")
    trace, requests, lines = folder / "trace.jsonl", [], dict[str, int]()
    for number, (line, fields) in enumerate(_json_lines(folder, "trace.jsonl")):
        request = _request(f"{trace}:{line}", number, fields, config.step_time)
        first = lines.setdefault(request.request_id, line)
        if first != line:
            raise UserError(
                f"{trace}:{line}: request_id is {request.request_id!r}, that of line {first}; each needs one of its own"
            )
        requests.append(request)
    if not requests:
        raise UserError(f"{trace}: there are no requests in it")
    return Recording(folder, config, requests)


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
                except (ValueError, RecursionError) as error:  # syntax, endless digits or depth
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
    values = {"priority": 0, "abort_step": None, "output_stream": _unnamed(number, 1)} | fields
    if "arrival_step" not in values and step_time is not None:
        values["arrival_step"] = _step(where, values.get("arrival_time"), step_time)

    def whole(key: str, least: int, most: int) -> int:
        value: Any = values.get(key)
        if not is_whole(value, least, most):
            known = f"is {value!r}" if key in values else "is not given"
            raise UserError(
                f"{where}: {key} {known}; it must be a whole number from {least} to {most}"
            )
        return int(value)

    if not isinstance(values.get("request_id"), str):
        raise UserError(f"{where}: request_id is {values.get('request_id')!r}; it must be a text")
    num_output_tokens = whole("output_len", 1, _STREAM_TOKENS)
    answer = (whole("output_stream", 0, _MOST_STREAM), 0, num_output_tokens)
    try:
        prompt = list(_prompt(number, values))
        fits = all(map(_is_piece, prompt))
    except (TypeError, ValueError, KeyError, ZeroDivisionError) as error:
        raise UserError(f"{where}: the prompt cannot be read: {error!r}") from error
    if not fits or not prompt:
        raise UserError(
            f"{where}: the prompt is {str(prompt)[:80]} as [stream, start, length]; it must be of 1 piece or more, "
            f"of 1 token or more each, which ends at token {_STREAM_TOKENS} of its stream or before"
        )
    return RecordedRequest(
        values["request_id"],
        whole("arrival_step", 0, _MOST_STEP),
        None if values["abort_step"] is None else whole("abort_step", 0, _MOST_STEP),
        sum(num for _, _, num in prompt),
        num_output_tokens,
        whole("priority", -_MOST_STEP, _MOST_STEP),
        spans_of([*prompt, answer], _TOKEN_BITS),
    )


def _is_piece(piece: tuple[Any, Any, Any]) -> bool:
    stream, start, num = piece
    return (
        is_whole(stream, 0, _MOST_STREAM)
        and is_whole(start, 0)
        and is_whole(num, 1)
        and bool(start + num <= _STREAM_TOKENS)
    )


def _step(where: str, time: Any, step_time: float) -> int:
    """The step that sees what comes at `time`, in seconds."""
    if not isinstance(time, int | float) or not 0 <= time <= _MOST_STEP * step_time:
        raise UserError(
            f"{where}: arrival_time is {time!r}; it must be from 0 to {_MOST_STEP} steps of {step_time} s"
        )
    return math.ceil(time / step_time)


def _unnamed(number: int, is_answer: int) -> int:
    """The stream of what the trace does not name."""
    return _FIRST_UNNAMED_STREAM + 2 * number + is_answer


def _prompt(number: int, fields: dict[str, Any]) -> Iterator[tuple[Any, Any, Any]]:
    """The prompt as pieces (stream, start, number of tokens), given in one of four ways."""
    if "prompt_token_ids" in fields:
        for token in fields["prompt_token_ids"]:
            yield (*divmod(token, _STREAM_TOKENS), 1)
    elif "prompt_segments" in fields:
        for stream, start, num in fields["prompt_segments"]:
            if num != 0:
                yield stream, start, num
    elif "hash_ids" in fields:
        length, span = fields["prompt_len"], fields.get("hash_span", 512)
        num_spans = -(-length // span)
        if num_spans != len(fields["hash_ids"]):
            raise ValueError(
                f"{num_spans} spans of {span} tokens, {len(fields['hash_ids'])} hash_ids"
            )
        for index, stream in enumerate(fields["hash_ids"]):
            yield stream, 0, min(span, length - index * span)
    else:
        yield _unnamed(number, 0), 0, fields["prompt_len"]
