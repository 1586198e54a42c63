"""LLM calls as the readers of session formats collect them, and the trace that they make."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..arrays import Int64
from ..content import Content
from ..errors import UserError
from ..sessions import NONE, UNKNOWN_THINK_NS, Sessions
from ..trace import MAX_SPAN_NS, UNKNOWN_MAX_TOKENS, TraceChunk
from .checks import MAX_SPAN_S
from .token_streams import Piece

# A note for formats that record waits only.
LATER_CALLS = (
    "later calls of a session have no recorded arrival; theirs are as if calls took no time"
)


@dataclass(slots=True)
class Call:
    """One LLM call of a session.

    It comes `think_ns` (think or tool time) after the last of the calls `after` has finished; the
    first of these is the one before it. `arrival_ns` is when it came in the recording. Where the
    format records waits only, that is the earliest time: as if calls took none.
    """

    session: int  # -1: a request on its own
    arrival_ns: int
    num_prompt_tokens: int
    num_output_tokens: int
    after: Sequence[int] = ()  # indices into the list of calls
    think_ns: int = UNKNOWN_THINK_NS
    max_tokens: int = UNKNOWN_MAX_TOKENS
    num_samples: int = 1


def chunk_of_calls(
    path: Path, calls: Sequence[Call], content: Content | None = None
) -> Iterator[TraceChunk]:
    """The calls in order of arrival, those of one instant in the order they are given, in a chunk.

    `content` has the calls in the order of `calls`. A call is waited for by one call beside those
    that come right after it; if there are more, by the first. Without any call there is no chunk.
    Raises UserError if the calls are further apart than MAX_SPAN_NS.
    """
    if not calls:
        return
    # Python's integers, because sums of waits may be beyond int64.
    first_ns = min(call.arrival_ns for call in calls)
    span_ns = max(call.arrival_ns for call in calls) - first_ns
    if span_ns > MAX_SPAN_NS:
        raise UserError(
            f"{path}: its calls are {span_ns // 10**9:,} s apart, beyond the limit of"
            f" {MAX_SPAN_S:,} s; check its times"
        )
    arrival_ns = _column([call.arrival_ns - first_ns for call in calls])
    order = np.argsort(arrival_ns, kind="stable")
    num_samples = _column([call.num_samples for call in calls])[order]
    yield TraceChunk(
        arrival_ns=arrival_ns[order],
        num_prompt_tokens=_column([call.num_prompt_tokens for call in calls])[order],
        num_output_tokens=_column([call.num_output_tokens for call in calls])[order],
        max_tokens=_column([call.max_tokens for call in calls])[order],
        content=None if content is None else content.take(order),
        sessions=_sessions(calls, order),
        num_samples=num_samples if num_samples.max() > 1 else None,
    )


def content_of_pieces(pieces: Sequence[Sequence[Piece]]) -> Content:
    """Content known token by token, from the pieces of each request."""
    flat = _column([number for of_one in pieces for piece in of_one for number in piece])
    streams, starts, num_tokens = flat.reshape(-1, 3).T
    return Content(
        block_tokens=1,
        offsets=np.cumsum([0, *map(len, pieces)], dtype=np.int64),
        streams=streams,
        starts=starts,
        num_tokens=num_tokens.astype(np.int32),
    )


def joined_contents(contents: Sequence[Content]) -> Content:
    """One behind the other; they have the same block tokens, and their streams mean the same."""
    num_pieces = np.cumsum([0, *(content.offsets[-1] for content in contents)])
    return Content(
        block_tokens=contents[0].block_tokens,
        offsets=np.concatenate(
            [
                [0],
                *(c.offsets[1:] + before for c, before in zip(contents, num_pieces, strict=False)),
            ]
        ).astype(np.int64),
        streams=np.concatenate([content.streams for content in contents]),
        starts=np.concatenate([content.starts for content in contents]),
        num_tokens=np.concatenate([content.num_tokens for content in contents]),
    )


def _sessions(calls: Sequence[Call], order: Int64) -> Sessions | None:
    if all(call.session == NONE for call in calls):
        return None
    num_calls_of: dict[int, int] = {}
    number_of: dict[int, int] = {}  # in its session
    for index in order.tolist():
        session = calls[index].session
        number_of[index] = num_calls_of.get(session, 0) if session != NONE else 0
        num_calls_of[session] = number_of[index] + 1
    after_call, think_ns = dict.fromkeys(number_of, NONE), dict.fromkeys(number_of, NONE)
    join_call = dict.fromkeys(number_of, NONE)
    for index in number_of:
        call = calls[index]
        # A recording may contradict itself: nobody waits for what came later.
        before = [other for other in call.after if number_of[other] < number_of[index]]
        if not before:
            continue
        after_call[index], think_ns[index] = number_of[before[0]], call.think_ns
        for other in before[1:]:
            if join_call[other] == NONE:
                join_call[other] = number_of[index]
    return Sessions(
        session=_column([calls[index].session for index in number_of]),
        call=_column(list(number_of.values())),
        after_call=_column(list(after_call.values())),
        think_ns=_column(list(think_ns.values())),
        join_call=_column(list(join_call.values())),
    )


def _column(values: Sequence[int]) -> Int64:
    return np.array(values, dtype=np.int64)
