"""How many requests of a length mix are in a pool, against a loop over every step of every request."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sizing_pools import WindowPool

from kvtwin.sim.sizing.lengths import LengthMix, mix_capacity
from kvtwin.traces import Trace, TraceChunk, UserError


def mix(pairs: list[tuple[int, int]]) -> LengthMix:
    prompts, outputs = np.array(pairs, dtype=np.int64).T
    return LengthMix("made", prompts, outputs)


@given(
    pairs=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=8),
    num_blocks=st.integers(2, 40),
    block_size=st.integers(1, 20),
    window=st.integers(1, 50),
)
def test_the_mean_is_over_every_step_of_every_request(
    pairs: list[tuple[int, int]], num_blocks: int, block_size: int, window: int
) -> None:
    pool = WindowPool(num_blocks, block_size, window)
    held = [(p + step, p + o - 1) for p, o in pairs for step in range(o)]
    taken = [pool.bytes_for(now) / (num_blocks - 1) for now, _ in held]
    reserved = [pool.bytes_for(end) / (num_blocks - 1) for _, end in held]
    found = mix_capacity(pool, mix(pairs))
    assert found.mean_resident_tokens == pytest.approx(np.mean([now for now, _ in held]))
    assert found.num_running == pytest.approx(1 / np.mean(taken))
    assert found.num_running_reserved == pytest.approx(1 / np.mean(reserved))
    assert found.num_too_long == sum(not pool.fits(p + o - 1) for p, o in pairs)


def test_a_long_request_weighs_more_than_its_number_says() -> None:
    # 10 requests of one step with 10 tokens, one of 90 steps with 100 to 189: of 100 steps, 10 hold
    # 10 tokens and 90 hold 144.5 on average.
    found = mix_capacity(WindowPool(1000, 1, 1), mix([(10, 1)] * 10 + [(100, 90)]))
    assert found.mean_resident_tokens == pytest.approx((10 * 10 + 90 * 144.5) / 100)


def made_trace(prompts: list[int], outputs: list[int]) -> Trace:
    n = len(prompts)
    chunk = TraceChunk(
        np.zeros(n, np.int64), np.array(prompts), np.array(outputs), np.full(n, -1, np.int64)
    )
    return Trace("made", "synthetic", (chunk,))


def test_requests_are_judged_and_clipped_as_at_arrival() -> None:
    found = LengthMix.of_trace(made_trace([99, 100, 50, 200], [5, 5, 50, 5]), max_model_len=100)
    assert found.num_prompt_tokens.tolist() == [99, 50]
    assert found.num_output_tokens.tolist() == [1, 50]
    assert (found.num_rejected, found.num_clipped) == (2, 1)


def test_a_trace_without_a_servable_prompt_is_refused() -> None:
    with pytest.raises(UserError, match="shortest prompt has 100 tokens and max_model_len is 100"):
        LengthMix.of_trace(made_trace([100, 300], [1, 1]), max_model_len=100)
