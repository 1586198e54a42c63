"""TraceLab replay files, CSV: one round of a session in each row.

Source: github.com/uw-syfi/TraceLab, artifacts/trace_facts/csv_export. `prefix_len` tokens of the
session so far are kept and `input_len` new ones follow; the prompt is both. `arrival_time` is that
of the session, in milliseconds, repeated on each round (all at 0 where absent). A round comes
`tool_wait_after_ms` after the one before it finished. Rows of a session may be in any order.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from ..sessions import UNKNOWN_THINK_NS
from ..trace import TraceChunk
from .calls import LATER_CALLS, Call, chunk_of_calls, content_of_pieces
from .checks import MAX_TOKENS, fail_at, parsed_json, shown, token_problem
from .json_value import JsonValue
from .source import Head, Source
from .table import Table, csv_tables
from .token_streams import Conversation, Piece

SHAPE = "CSV with round_idx, prefix_len, input_len, output_len"
_COUNTS = ("round_idx", "prefix_len", "input_len", "output_len")
_OPTIONAL = ("session_id", "id", "arrival_time", "tool_wait_after_ms")
_MS = 10**6
_NO_OUTPUT = "round without output tokens"


@dataclass(slots=True)
class _Round:
    place: str
    session_ns: int
    wait_after_ns: int
    num_prefix_tokens: int
    num_prompt_tokens: int
    num_output_tokens: int


def recognises(head: Head) -> bool:
    return head.columns >= set(_COUNTS)


def read(source: Source) -> Iterator[TraceChunk]:
    sessions: defaultdict[str, dict[int, _Round]] = defaultdict(dict)
    for table in csv_tables(source, _COUNTS, _OPTIONAL, counts=_COUNTS):
        for session, index, this in _rounds(table):
            if index in sessions[session]:
                same = sessions[session][index].place
                fail_at(
                    this.place, f"round_idx is {index} as at {same} of session {shown(session)}"
                )
            sessions[session][index] = this
    calls: list[Call] = []
    pieces: list[list[Piece]] = []
    for number, rounds in enumerate(sessions.values()):
        in_order = [rounds[index] for index in sorted(rounds)]
        _add_session(number, in_order, calls, pieces, source)
    if any(call.after for call in calls):
        source.notes.append(LATER_CALLS)
    yield from chunk_of_calls(source.path, calls, content_of_pieces(pieces))


def _add_session(
    session: int,
    rounds: list[_Round],
    calls: list[Call],
    pieces: list[list[Piece]],
    source: Source,
) -> None:
    conversation = Conversation()
    after: tuple[int, ...] = ()
    waited_ns = think_ns = 0
    for this in rounds:
        if this.num_output_tokens == 0:
            source.skipped[_NO_OUTPUT] += 1
        else:
            pieces.append(
                conversation.say(
                    this.num_prefix_tokens,
                    this.num_prompt_tokens + this.num_output_tokens,
                    new_stream=len(calls),
                )
            )
            calls.append(
                Call(
                    session=session,
                    arrival_ns=rounds[0].session_ns + waited_ns,
                    num_prompt_tokens=this.num_prompt_tokens,
                    num_output_tokens=this.num_output_tokens,
                    after=after,
                    think_ns=think_ns if after else UNKNOWN_THINK_NS,
                )
            )
            after, think_ns = (len(calls) - 1,), 0
        waited_ns += this.wait_after_ns
        think_ns += this.wait_after_ns


def _rounds(table: Table) -> Iterator[tuple[str, int, _Round]]:
    """Session, number in it, and round of each row."""
    prefix, new, output = (table.token_counts(name, least=0).tolist() for name in _COUNTS[1:])
    session = next((name for name in ("session_id", "id") if name in table.columns), None)
    for row, index in enumerate(table.token_counts("round_idx", least=0).tolist()):
        num_prompt_tokens = prefix[row] + new[row]
        if not 1 <= num_prompt_tokens <= MAX_TOKENS:
            problem = token_problem("prefix_len + input_len", str(num_prompt_tokens))
            fail_at(table.place(row), problem)
        yield (
            table.text(session, row) if session else "",
            index,
            _Round(
                place=table.place(row),
                session_ns=_time_ns(table, "arrival_time", row),
                wait_after_ns=_time_ns(table, "tool_wait_after_ms", row),
                num_prefix_tokens=prefix[row],
                num_prompt_tokens=num_prompt_tokens,
                num_output_tokens=output[row],
            ),
        )


def _time_ns(table: Table, column: str, row: int) -> int:
    """Milliseconds as nanoseconds; 0 where there is no such column."""
    if column not in table.columns:
        return 0
    text = table.text(column, row)
    number = parsed_json(text.encode())
    value = text if number is None else number
    return JsonValue(value, table.place(row), key=column).ns(_MS, "milliseconds")
