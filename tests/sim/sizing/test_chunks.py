"""Attention in chunks, as Llama 4's: vLLM stores it in full beside full attention, else by the chunk."""

from dataclasses import replace

import pytest
from made_models import attention, deployment, made_model

from kvtwin.sim import ModelSpec
from kvtwin.sim.layers import AttentionKv
from kvtwin.sim.sizing.engines.vllm import Vllm, VllmPool
from kvtwin.sim.sizing.engines.vllm_no_hybrid import VllmNoHybrid


def chunk(num_tokens: int) -> AttentionKv:
    return replace(attention(window=num_tokens), chunked=True)


def pool_of(model: ModelSpec, accounting: Vllm | None = None) -> VllmPool:
    """Steps of 100 tokens, two of them in flight."""
    what = deployment(model, max_num_batched_tokens=100, num_gpu_blocks_override=1000)
    return (accounting or Vllm()).pool(what, 0, 10**9)


def test_chunks_beside_full_attention_are_stored_in_full() -> None:
    """4,096 tokens are 256 blocks of 16 x 4 layers x 4,096 B; with windows they would be fewer."""
    model = made_model(*[chunk(512)] * 3, attention())
    pool = pool_of(model)
    assert pool.bytes_for(4096) == pool.bytes_to_admit(4096) == 256 * 16 * 4 * 4096
    assert pool == pool_of(model, VllmNoHybrid())
    windowed = made_model(*[attention(window=512)] * 3, attention())
    assert pool_of(windowed).bytes_for(4096) < pool.bytes_for(4096)


@pytest.mark.parametrize(
    ("num_tokens", "planned", "held"),
    [
        (4096, 45, 32),  # ceil((512 + 200) / 16), and 512 / 16
        (100, 7, 7),
        (600, 38, 32),  # ceil(600 / 16)
    ],
)
def test_a_chunk_is_planned_for_without_a_block_more(
    num_tokens: int, planned: int, held: int
) -> None:
    """`kv_cache_interface.py`: ChunkedLocalAttentionSpec.max_admission_blocks_per_request."""
    pool = pool_of(made_model(chunk(512)))
    assert pool.bytes_to_admit(num_tokens) == planned * 16 * 4096
    assert pool.bytes_for(num_tokens) == held * 16 * 4096


def test_a_chunk_that_begins_inside_a_block_may_take_one_more() -> None:
    """500 tokens from the twelfth of a block: 4 + 31 x 16, so 32 blocks; from its last, 33."""
    assert pool_of(made_model(chunk(500))).bytes_for(4096) == 33 * 16 * 4096
