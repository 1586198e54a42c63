"""Weka / kv-cache-tester sessions: one JSON object per coding session, or a folder of them.

Source: github.com/callanjfox/kv-cache-tester. `requests` holds calls and subagents in order. A
call has `t` (seconds from the session's start), `in` and `out` tokens, and one id for each *full*
block of `block_size` prompt tokens; the rest of the prompt is like no other. Ids are local to the
file unless `hash_id_scope` is "global", and two models share nothing: their KV differs.

A subagent's `t` is when it *finished*, `duration_ms` after its start. It forks from the parent's
last call before that start, and the parent's next call after its end waits for it. One without a
duration was launched in the background: its `t` is its start, and nobody waits for it. The times
of its calls restart at 0; where none is 0, they are times of the session, as in copies published
elsewhere.

Sessions have no start times, so each begins at 0. A call without output tokens failed and is left
out; the `think_time` of the next one counts from the call before it. Where there is none, it is
the time since the call before ended or, without its `api_time`, started.
"""

from collections.abc import Iterator
from itertools import chain

import numpy as np

from ..content import MAX_SCOPES, Content, content_of_block_ids
from ..trace import TraceChunk
from .calls import Call, chunk_of_calls, joined_contents
from .json_documents import documents, json_files
from .json_head import head_keys
from .json_value import JsonValue, count_unknown
from .source import Head, Source, read_head
from .weka_session import SessionReader

SHAPE = "JSON with requests, block_size, hash_id_scope, or a folder of such files"
_KEYS = frozenset(
    (
        "id",
        "models",
        "block_size",
        "hash_id_scope",
        "requests",
        "tool_tokens",
        "system_tokens",
        "totals",
    )
)
_MAX_BLOCK_TOKENS = 1 << 20


def recognises(head: Head) -> bool:
    if head.is_folder:
        return any(recognises(read_head(path)) for path in json_files(head.path))
    return {"block_size", "requests"} <= head_keys(head)


def read(source: Source) -> Iterator[TraceChunk]:
    calls: list[Call] = []
    contents: list[Content] = []
    scopes: dict[tuple[str, str], int] = {}
    readers: list[SessionReader] = []
    for number, document in enumerate(documents(source, recognises)):
        reader = _read_session(document, number, source)
        readers.append(reader)
        scope = document.get("hash_id_scope")
        name = str(number) if scope is None or scope.one_of(("local", "global")) == "local" else ""
        contents.append(_content(document, reader, scopes, name))
        if contents[0].block_tokens != reader.block_tokens:
            document["block_size"].wrong(f"{contents[0].block_tokens} as in the files before it")
        calls += _shifted(reader.calls, by=len(calls))
    _note(source, readers)
    yield from chunk_of_calls(source.path, calls, joined_contents(contents) if calls else None)


def _read_session(document: JsonValue, number: int, source: Source) -> SessionReader:
    count_unknown(document, _KEYS, source.unknown_keys)
    block_tokens = document["block_size"].whole(1, _MAX_BLOCK_TOKENS)
    models = document.get("models")
    model = next((name.text() for name in models.items()), "") if models is not None else ""
    reader = SessionReader(number, block_tokens, source.skipped, source.unknown_keys)
    reader.read_agent(document["requests"], 0, model)
    # A subagent may have started before the first call: then the session starts with it.
    first_ns = min((call.arrival_ns for call in reader.calls), default=0)
    for call in reader.calls:
        call.arrival_ns -= first_ns
    return reader


def _content(
    document: JsonValue, reader: SessionReader, scopes: dict[tuple[str, str], int], name: str
) -> Content:
    of_call = [scopes.setdefault((name, model), len(scopes)) for model in reader.models]
    if len(scopes) > MAX_SCOPES:
        document["requests"].fail(f"brings more than {MAX_SCOPES:,} models; split the folder")
    return content_of_block_ids(
        reader.block_tokens,
        np.fromiter(chain.from_iterable(reader.ids), dtype=np.uint64),
        np.cumsum([0, *map(len, reader.ids)], dtype=np.int64),
        np.array([call.num_prompt_tokens for call in reader.calls], dtype=np.int64),
        np.array(of_call, dtype=np.int64),
    )


def _shifted(calls: list[Call], by: int) -> list[Call]:
    for call in calls:
        call.after = [number + by for number in call.after]
    return calls


def _note(source: Source, readers: list[SessionReader]) -> None:
    source.notes.append("sessions have no start times: each starts at 0")
    for number, what in (
        (
            sum(reader.num_background for reader in readers),
            "subagents have no duration: they start at their time, and nobody waits for them",
        ),
        (
            sum(reader.num_session_times for reader in readers),
            "subagents have calls of which none starts at 0: their times are the session's",
        ),
        (
            sum(reader.num_start_to_start for reader in readers),
            "think times hold the service time of the call before, which is not recorded",
        ),
    ):
        if number:
            source.notes.append(f"{number:,} {what}")
