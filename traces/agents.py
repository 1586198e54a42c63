"""Generated agent sessions: calls with tool results in between, and subagents that fork and join."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .arrays import Int64
from .distributions import draw_arrivals, draw_lengths
from .errors import UserError
from .formats.calls import LATER_CALLS, Call, chunk_of_calls, content_of_pieces
from .formats.token_streams import Piece
from .synth import MAX_REQUESTS, starts_at_once
from .trace import MAX_SPAN_NS, Trace

_SHARED = 1 << 40  # streams of the two system prompts; those of agents are below
# Draws are made in blocks of so many, because how many are needed follows from them.
_BLOCK = 4096


@dataclass(frozen=True)
class AgentMix:
    """What to generate. Distributions are written as in `distributions.py`.

    A session begins with a system prompt that all share and a task, and makes a geometric number of
    calls. After each but the last, a tool runs: its result follows the answer in the next prompt. With
    probability `subagent_share` the tool is a subagent: a chain of calls of its own, which starts
    when the call has finished, and which the session's next call waits for. An agent stops where its next
    call would have more than `max_model_len` tokens.
    """

    task: str
    output: str
    tool_result: str
    rate: float  # sessions a second; inf: all start at once
    arrivals: str = "poisson"
    mean_calls: float = 10.0
    mean_tool_s: float = 1.0  # exponential
    subagent_share: float = 0.0
    mean_subagent_calls: float = 5.0
    system_prompt_tokens: int = 0
    max_model_len: int = 131_072

    def __post_init__(self) -> None:
        for name, least, most in (
            ("mean_calls", 1, 10**4),
            ("mean_tool_s", 0, 10**6),
            ("subagent_share", 0, 1),
            ("mean_subagent_calls", 1, 10**4),
            ("system_prompt_tokens", 0, 10**6),
            ("max_model_len", 2, 10**7),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise UserError(f"{name} is {value}; it must be from {least} to {most:,}")
        starts_at_once(self.rate, self.arrivals)


def generate_agents(name: str, mix: AgentMix, num_requests: int, seed: int) -> Trace:
    """The first `num_requests` calls, session by session. The same arguments give the same bytes.

    Raises UserError for what cannot be drawn, or if a first call does not fit into max_model_len.
    """
    if not 1 <= num_requests <= MAX_REQUESTS:
        raise UserError(f"num_requests is {num_requests}; it must be from 1 to {MAX_REQUESTS:,}")
    if seed < 0:
        raise UserError(f"seed is {seed}; it must be at least 0")
    arrival_rng, *rngs = (
        np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(5)
    )
    starts_s = draw_arrivals(mix.arrivals, mix.rate, arrival_rng, num_requests)
    agents = _Agents(mix, rngs)
    for session, start_s in enumerate(starts_s.tolist()):
        if len(agents.calls) >= num_requests:
            break
        if not start_s <= MAX_SPAN_NS / 1e9:
            raise UserError(f"rate is {mix.rate}; the trace would be too long; use a higher rate")
        agents.run(session, round(start_s * 1e9), mix.task, mix.mean_calls, (), True)
    # A call waits for earlier ones of the list only, so its head is whole.
    calls, pieces = agents.calls[:num_requests], agents.pieces[:num_requests]
    (chunk,) = chunk_of_calls(Path(name), calls, content_of_pieces(pieces))
    return Trace(name, "synthetic", (chunk,), notes=(LATER_CALLS,))


class _Agents:
    """Runs agents one behind the other, and collects their calls."""

    def __init__(self, mix: AgentMix, rngs: list[np.random.Generator]) -> None:
        self._mix = mix
        length_rng, self._tool_rng, self._choice_rng, self._stop_rng = rngs
        self._lengths = {
            text: _Draws(text, rng)
            for text, rng in zip(
                dict.fromkeys((mix.task, mix.output, mix.tool_result)),
                length_rng.spawn(3),
                strict=False,
            )
        }
        self._num_agents = 0
        self.calls: list[Call] = []
        self.pieces: list[list[Piece]] = []

    def run(
        self,
        session: int,
        arrival_ns: int,
        message: str,
        mean_calls: float,
        after: tuple[int, ...],
        is_main: bool,
    ) -> int | None:
        """One agent from its first call on, which comes after others or at `arrival_ns`.

        Returns the index of its last call; None if not even the first one fits.
        """
        mix, last, think_ns = self._mix, None, 0
        stream, self._num_agents = self._num_agents, self._num_agents + 1
        own = self._lengths[message].next()
        while True:
            output = self._lengths[mix.output].next()
            prompt = mix.system_prompt_tokens + own
            if prompt + output > mix.max_model_len:
                if last is None and is_main:
                    raise UserError(
                        f"a first call has {prompt + output:,} tokens, but max_model_len is"
                        f" {mix.max_model_len:,}; use shorter tasks or a longer model"
                    )
                return last
            call = Call(session, arrival_ns, prompt, output, after)
            if after:
                call.think_ns = think_ns
            last = len(self.calls)
            self.calls.append(call)
            own += output
            system = [(_SHARED + (not is_main), 0, mix.system_prompt_tokens)]
            head: list[Piece] = system if mix.system_prompt_tokens else []
            self.pieces.append([*head, (stream, 0, own)])
            if self._stop_rng.random() < 1 / mean_calls:
                return last
            after = (last,)
            if is_main and self._choice_rng.random() < mix.subagent_share:
                joined = self.run(
                    session, arrival_ns, mix.task, mix.mean_subagent_calls, after, False
                )
                if joined is not None:
                    after = (last, joined)
                    arrival_ns = max(arrival_ns, self.calls[joined].arrival_ns)
            think_ns = round(self._tool_rng.exponential(mix.mean_tool_s) * 1e9)
            arrival_ns += think_ns
            own += self._lengths[mix.tool_result].next()


class _Draws:
    """Lengths of one distribution, as many as are asked for."""

    def __init__(self, text: str, rng: np.random.Generator) -> None:
        self._text, self._rng = text, rng
        self._block: Int64 = np.zeros(0, dtype=np.int64)
        self._place = 0

    def next(self) -> int:
        if self._place == len(self._block):
            self._block, self._place = draw_lengths(self._text, self._rng, _BLOCK), 0
        self._place += 1
        return int(self._block[self._place - 1])
