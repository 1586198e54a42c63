"""Generated traces of any lengths and arrivals, with system prompts that are shared and chats of several turns."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from .arrays import Int64
from .distributions import draw_arrivals, draw_pairs
from .errors import UserError
from .formats.calls import LATER_CALLS, Call, chunk_of_calls, content_of_pieces
from .formats.token_streams import Piece
from .sessions import NONE
from .synth import MAX_REQUESTS, starts_at_once
from .trace import MAX_SPAN_NS, Trace

_SHARED = 1 << 40  # streams of system prompts; those of sessions are below


@dataclass(frozen=True)
class Mix:
    """What to generate. Distributions are written as in `distributions.py`.

    `prompt` is what is new in a turn: the user's message. A request's prompt is a system prompt, the
    session so far, and the message. `mean_turns` is the mean of a geometric distribution. A session
    ends where its next turn would have more than `max_model_len` tokens.
    """

    prompt: str
    output: str
    arrivals: str = "poisson"
    rate: float | None = (
        None  # requests a second, all turns counted; None or inf: all sessions start at once
    )
    num_system_prompts: int = (
        0  # drawn by rank with Zipf weights 1/rank, as applications differ in use
    )
    system_prompt_tokens: int = 0
    mean_turns: float = 1.0
    mean_think_s: float = 0.0  # exponential, from the end of a response to the next message
    max_model_len: int = 131_072
    num_priorities: int = 0  # of sessions, drawn evenly from 0 to below it; 0: no priorities
    num_samples: int = 1  # outputs asked of every prompt

    def __post_init__(self) -> None:
        for name, least, most in (
            ("num_system_prompts", 0, 10**6),
            ("system_prompt_tokens", 0, 10**6),
            ("mean_turns", 1, 10**4),
            ("mean_think_s", 0, 10**6),
            ("max_model_len", 2, 10**7),
            ("num_priorities", 0, 100),
            ("num_samples", 1, 100),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise UserError(f"{name} is {value}; it must be from {least} to {most:,}")
        if (self.num_system_prompts > 0) != (self.system_prompt_tokens > 0):
            raise UserError("system prompts need both a number and a length above 0")
        if self.system_prompt_tokens >= self.max_model_len - 1:
            raise UserError(
                f"system_prompt_tokens is {self.system_prompt_tokens}; max_model_len is"
                f" {self.max_model_len} and leaves no room for a message and an answer"
            )
        starts_at_once(self.rate, self.arrivals)


def generate(name: str, mix: Mix, num_requests: int, seed: int) -> Trace:
    """`num_requests` requests of `mix`. The same arguments give the same bytes.

    Lengths, arrivals, system prompts, turns, thinking and priorities have random streams of their own, so a change
    of one leaves the others. Messages and outputs that are longer than max_model_len allows are
    clipped and counted. Raises UserError for what cannot be drawn.
    """
    if not 1 <= num_requests <= MAX_REQUESTS:
        raise UserError(f"num_requests is {num_requests}; it must be from 1 to {MAX_REQUESTS:,}")
    if seed < 0:
        raise UserError(f"seed is {seed}; it must be at least 0")
    prompt_rng, output_rng, arrival_rng, system_rng, turn_rng, think_rng, priority_rng = (
        np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(7)
    )
    messages, outputs = draw_pairs(mix.prompt, mix.output, prompt_rng, output_rng, num_requests)
    room = mix.max_model_len - mix.system_prompt_tokens
    kept_messages = np.minimum(messages, room - 1)
    kept_outputs = np.minimum(outputs, room - kept_messages)
    clipped = (kept_messages < messages) | (kept_outputs < outputs)

    session_of, is_first = _sessions(mix, turn_rng, kept_messages + kept_outputs, room)
    num_sessions = int(is_first.sum())
    starts_ns = _starts_ns(mix, arrival_rng, num_sessions, num_requests)
    thinks_ns = np.rint(think_rng.exponential(mix.mean_think_s or 0.0, num_requests) * 1e9)
    systems = _systems(mix, system_rng, num_sessions)

    calls: list[Call] = []
    pieces: list[list[Piece]] = []
    num_before = arrival_ns = 0
    columns = zip(
        *(c.tolist() for c in (session_of, is_first, kept_messages, kept_outputs)),
        thinks_ns.astype(np.int64).tolist(),
        strict=True,
    )
    for row, (session, first, message, output, think_ns) in enumerate(columns):
        num_before = 0 if first else num_before
        arrival_ns = starts_ns[session] if first else arrival_ns + think_ns
        call = Call(
            session=session if mix.mean_turns > 1 else NONE,
            arrival_ns=arrival_ns,
            num_prompt_tokens=mix.system_prompt_tokens + num_before + message,
            num_output_tokens=output,
        )
        if not first:
            call = replace(call, after=(row - 1,), think_ns=think_ns)
        calls.append(call)
        num_before += message + output
        own = (session, 0, num_before)  # messages and answers are one stream
        pieces.append([*systems[session], own])
    order = np.argsort([call.arrival_ns for call in calls], kind="stable")
    (chunk,) = chunk_of_calls(Path(name), calls, content_of_pieces(pieces))
    if mix.num_priorities:
        priorities = priority_rng.integers(mix.num_priorities, size=num_sessions)
        chunk = replace(chunk, priority=priorities[session_of[order]])
    if mix.num_samples > 1:
        chunk = replace(chunk, num_samples=np.full(num_requests, mix.num_samples))
    return Trace(
        name,
        "synthetic",
        (chunk,),
        clipped_rows=tuple(np.flatnonzero(clipped[order]).tolist()),
        notes=(LATER_CALLS,) if mix.mean_turns > 1 else (),
    )


def _sessions(
    mix: Mix, rng: np.random.Generator, new_tokens: Int64, room: int
) -> tuple[Int64, Int64]:
    """The session of each request, and whether (1 or 0) it is the first of it."""
    goes_on = rng.random(len(new_tokens)) < 1 - 1 / mix.mean_turns
    is_first = np.ones(len(new_tokens), dtype=np.int64)
    num_tokens = int(new_tokens[0])
    for row in range(1, len(new_tokens)):
        more = num_tokens + int(new_tokens[row])
        if goes_on[row] and more <= room:
            is_first[row], num_tokens = 0, more
        else:
            num_tokens = int(new_tokens[row])
    return np.cumsum(is_first) - 1, is_first


def _starts_ns(
    mix: Mix, rng: np.random.Generator, num_sessions: int, num_requests: int
) -> list[int]:
    if mix.rate is None:
        return [0] * num_sessions
    starts_s = draw_arrivals(
        mix.arrivals, mix.rate * num_sessions / num_requests, rng, num_sessions
    )
    if not starts_s[-1] <= MAX_SPAN_NS / 1e9:
        raise UserError(
            f"rate is {mix.rate}; {num_requests} requests would take longer than the limit of"
            f" {MAX_SPAN_NS // 10**9:,} s; use a higher rate or fewer requests"
        )
    return [int(start) for start in np.rint(starts_s * 1e9)]


def _systems(mix: Mix, rng: np.random.Generator, num_sessions: int) -> list[list[Piece]]:
    """The pieces of the system prompt of each session."""
    if not mix.num_system_prompts:
        return [[] for _ in range(num_sessions)]
    ends = np.cumsum(1 / np.arange(1, mix.num_system_prompts + 1))
    drawn = np.searchsorted(ends, rng.random(num_sessions) * ends[-1], side="right")
    return [[(_SHARED + system, 0, mix.system_prompt_tokens)] for system in drawn.tolist()]
