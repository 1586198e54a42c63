"""Small random traces and settings.

They are drawn so that pools run out, budgets cut prompts, and the longest cost term changes.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from kvtwin.sim import CostModel, CostTerm, RunConfig
from kvtwin.sim.prompts import Pieces
from kvtwin.traces import Content, Sessions, Trace, TraceChunk, waits

NS = 1 << 20  # cost coefficients are in units of 2**-20 ns
# Activations take about as many bytes a token as the KV, so that no-cache runs out of room, too.
MODEL = {"model": "llama-3.1-8b", "gpu": "a100-80gb"}

# Terms that overtake each other as contexts and moves grow; rounding matters in the last two.
COSTS = {
    "crossing": (
        (9_000_000 * NS, (0, 0, 0, 0, 0, 0)),
        (1_000_000 * NS, (50_000 * NS, 0, 0, 900_000 * NS, 90_000 * NS, 400_000 * NS)),
        (NS, (7 * NS, 3_000 * NS, 70_000 * NS, NS, 200_000 * NS, 0)),
    ),
    "fractions": (
        (3 * NS // 2, (NS // 3, NS // 7, 0, NS // 5, NS // 11, NS)),
        (NS, (0, 0, NS // 3, 0, NS // 9, NS // 2)),
    ),
    "below-one-ns": ((0, (NS // 50, 0, 0, NS // 70, NS // 900, 0)),),
}


def write_costs(directory: Path) -> list[str]:
    """Every kind of `cost` that a configuration takes; coefficients files go to `directory`."""
    names = ["roofline", "constant:1", "constant:6500000", "constant:25000000"]
    for name, terms in COSTS.items():
        path = directory / f"{name}.json"
        named = tuple(CostTerm(f"{name}-{i}", *term) for i, term in enumerate(terms))
        CostModel(name, calibrated=False, terms=named).save(path)
        names.append(str(path))
    return names


def trace_of(requests: list[tuple[int, ...]], contents: list[Pieces] | None = None) -> Trace:
    """A trace of (arrival in ns, prompt, output[, max_tokens] in tokens), in order of arrival.

    `contents`: what each request is made of, as (stream, start, number of tokens) pieces.
    """
    columns = zip(*((*request, -1)[:4] for request in requests), strict=True)
    names = ("arrival_ns", "num_prompt_tokens", "num_output_tokens", "max_tokens")
    content = None if contents is None else content_of(contents)
    chunk = TraceChunk(**dict(zip(names, map(list, columns), strict=True)), content=content)
    return Trace("drawn", "synthetic", (chunk,))


def content_of(contents: list[Pieces]) -> Content:
    """Pieces of consecutive requests, whose content is known token by token."""
    offsets = np.cumsum([0, *map(len, contents)])
    pieces = np.array([piece for pieces in contents for piece in pieces]).reshape(-1, 3)
    return Content(1, offsets, *pieces.astype(np.int64).T)


@st.composite
def prompt_pieces(draw: st.DrawFn, num_tokens: int) -> Pieces:
    """Up to `num_tokens` tokens of a few streams that branch off each other, cut anywhere."""
    known = draw(st.integers(0, num_tokens))
    stream, at, pieces = draw(st.integers(0, 1)), 0, []
    while at < known:
        length = draw(st.integers(1, known - at))
        if pieces and pieces[-1][0] == stream:
            # The same stream goes on, or leaps ahead in it: the next token is another one.
            start = sum(pieces[-1][1:]) + draw(st.sampled_from([0, 0, 1]))
        else:
            start = at
        pieces.append((stream, start, length))
        at += length
        stream = draw(st.sampled_from([stream, stream, 2 + stream % 2]))
    return tuple(pieces)


def config_of(policy: str = "paged", **fields: Any) -> RunConfig:
    """A configuration of few fields."""
    return RunConfig(**(MODEL | {"policy": policy, "cost": "constant:10"} | fields))


@st.composite
def traces(draw: st.DrawFn, most: int = 25, longest: int = 40, with_content: bool = False) -> Trace:
    """1 to `most` requests, at once, in clusters or spread out; some have a max_tokens."""
    tokens = st.integers(1, longest)
    lengths = draw(
        st.lists(
            st.tuples(tokens, tokens, st.sampled_from([-1, -1, -1, 2, longest])),
            min_size=1,
            max_size=most,
        )
    )
    gap_ns = draw(
        st.sampled_from(
            [
                st.just(0),
                st.sampled_from([0, 0, 0, 1, 50_000_000, 400_000_000]),
                st.integers(0, 100_000_000),
                st.integers(0, 40),
            ]
        )
    )
    arrival_ns, requests = 0, []
    for num_prompt, num_output, max_tokens in lengths:
        requests.append((arrival_ns, num_prompt, num_output, max_tokens))
        arrival_ns += draw(gap_ns)
    if not with_content:
        return trace_of(requests)
    return trace_of(
        requests,
        [
            draw(prompt_pieces(num_prompt + num_output // 2))
            for _, num_prompt, num_output, _ in requests
        ],
    )


@st.composite
def session_traces(draw: st.DrawFn, longest: tuple[int, ...] = (3, 40), **options: Any) -> Trace:
    """The same in sessions: chains, forks and joins, requests on their own, think times that nobody knows."""
    trace = draw(traces(longest=draw(st.sampled_from(longest)), **options))
    (chunk,) = trace.chunks
    think_ns = st.sampled_from([-1, 0, 0, 1, 30_000_000, 700_000_000])
    num_sessions, calls = draw(st.integers(1, 4)), []
    num_calls = [0] * num_sessions
    for _ in range(chunk.num_requests):
        session = draw(st.integers(-1, num_sessions - 1))
        if session < 0:
            calls.append((-1, 0, -1, -1, -1))
            continue
        call = num_calls[session]
        num_calls[session] += 1
        after = draw(st.sampled_from([call - 1, call - 1, draw(st.integers(-1, call - 1))]))
        join = draw(st.sampled_from([-1, -1, call + 1, call + 3]))
        calls.append((session, call, after, -1 if after < 0 else draw(think_ns), join))
    return replace(trace, chunks=(replace(chunk, sessions=Sessions(*np.array(calls).T)),))


@st.composite
def configs(draw: st.DrawFn, policy: str, costs: list[str]) -> RunConfig:
    """Pools from one sequence to more than all, and steps from one token to more than all."""
    block_size = draw(st.sampled_from([1, 2, 3, 4, 8, 16]))
    num_slots = draw(st.one_of(st.integers(16, 130), st.integers(100, 600)))
    max_num_seqs = draw(st.integers(1, 8))
    return config_of(
        policy,
        block_size=block_size,
        num_gpu_blocks_override=max(1, num_slots // block_size),
        max_model_len=draw(st.sampled_from([30, 50, 64, 81, 81, 81])),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + draw(st.one_of(st.integers(0, 30), st.just(4000))),
        admission=draw(st.sampled_from(["step", "full"])),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.05, 0.2, 0.6])),
        growth_tokens=draw(st.sampled_from([1, 2, 5, 16])),
        fit=draw(st.sampled_from(["first", "best"])),
        compaction=draw(st.booleans()),
        max_tokens=draw(st.sampled_from([None, None, 25])),
        cost=draw(st.sampled_from(costs)),
    )


def closed_if_possible(config: RunConfig, trace: Trace) -> RunConfig:
    """The same in a closed loop, if anybody waits for anybody."""
    return replace(config, closed_loop=len(waits(trace).rows) > 0)


def run_files(directory: Path) -> dict[str, bytes]:
    """Content of every file of a run directory that is the same for the same run."""
    return {
        path.name: path.read_bytes() for path in directory.iterdir() if path.name != "meta.json"
    }
