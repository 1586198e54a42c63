"""Mooncake rows with a `session_id` whose lengths are what each turn adds.

As `mooncake-sessions`, but the prompt of a later turn is all of its session so far, prompts and
outputs, and then `input_length` new tokens, which `hash_ids` describe where there are any: what
AIPerf sends for such rows, and Dynamo's `mooncake-delta`.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from ..trace import TraceChunk
from .calls import Call, chunk_of_calls, content_of_pieces
from .checks import MAX_TOKENS, fail_at
from .json_columns import token_counts
from .json_rows import Row, json_rows
from .mooncake_sessions import LENGTHS, OPTIONAL, ids_of_rows, recognises, session_calls
from .source import Source
from .token_streams import Piece

SHAPE = "JSONL with session_id, input_length, output_length; input_length is what is new"
__all__ = ["SHAPE", "read", "recognises"]
# Streams of block ids are below 2^33; outputs, and new tokens without ids, have one for each row above.
_OUTPUTS, _UNNAMED = 1 << 33, 2 << 33


def read(source: Source) -> Iterator[TraceChunk]:
    rows = list(json_rows(source, LENGTHS, OPTIONAL))
    if not rows:
        return
    new_tokens = token_counts(source, rows, "input_length")
    ids = ids_of_rows(source, rows, new_tokens)
    new_pieces: list[list[Piece]] = [
        [(_UNNAMED + row, 0, num)] for row, num in enumerate(new_tokens.tolist())
    ]
    if ids is not None:
        pieces = list(
            zip(ids.streams.tolist(), ids.starts.tolist(), ids.num_tokens.tolist(), strict=True)
        )
        offsets = ids.offsets.tolist()
        new_pieces = [pieces[a:b] for a, b in pairwise(offsets)]
    calls = session_calls(source, rows, new_tokens.tolist())
    whole = _with_history(source, rows, calls, new_pieces)
    yield from chunk_of_calls(
        source.path, [call for call, _ in whole], content_of_pieces([p for _, p in whole])
    )


def _with_history(
    source: Source, rows: list[Row], calls: list[Call], new_pieces: list[list[Piece]]
) -> list[tuple[Call, list[Piece]]]:
    """The calls with all that came before in their sessions, and the pieces of prompt and output."""
    history: dict[int, list[Piece]] = {}
    num_before: dict[int, int] = {}
    whole = []
    for row, (call, new) in enumerate(zip(calls, new_pieces, strict=True)):
        prompt = num_before.get(call.session, 0) + call.num_prompt_tokens
        if prompt > MAX_TOKENS:
            fail_at(
                source.place(rows[row][0]),
                f"its session has {prompt:,} tokens by now; the limit is {MAX_TOKENS:,}",
            )
        output = (_OUTPUTS + row, 0, call.num_output_tokens)
        pieces = [*history.get(call.session, ()), *new, output]
        whole.append((replace(call, num_prompt_tokens=prompt), pieces))
        history[call.session], num_before[call.session] = pieces, prompt + call.num_output_tokens
    return whole
