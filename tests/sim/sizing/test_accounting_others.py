"""SGLang, TensorRT-LLM and no engine at all, against numbers worked out by hand."""

import math
from fractions import Fraction
from typing import Any

import pytest
from made_models import GIB, attention, deployment, made_gpu, made_model, state

from kvtwin.sim import find_gpu, find_model
from kvtwin.sim.sizing.accounting import SizedPool
from kvtwin.sim.sizing.deployment import Deployment, Given
from kvtwin.sim.sizing.engines.sglang import Sglang, SglangPool
from kvtwin.sim.sizing.registry import find_accounting
from kvtwin.sim.sizing.terms import sum_bytes


def pool_of(accounting: str, what: Deployment) -> SizedPool:
    found = find_accounting(accounting)
    return found.pool(what, 0, sum_bytes(found.budget(what, 0)))


def known(gib: float) -> Given:
    return Given(int(gib * GIB), "given", "by hand")


@pytest.mark.parametrize(
    ("gpu", "fields", "fraction"),
    [
        # 512 + 12,288 + 128 + 2 x 256 + 8 x 58 = 13,904 of 81,559 MiB.
        ("h100", {}, 0.83),
        # 512 + 6,144 + 128 + 2 x 48 + 8 x 50 = 7,280 of 23,034 MiB.
        ("l4", {}, 0.684),
        # On 4 ranks: 512 + 6,144 + 512 + 2 x 160 + 8 x 50 = 7,888 of 40,960 MiB.
        ("a100-40gb", {"tensor_parallel_size": 4}, 0.807),
        # 512 + 6,144 + 128 + 0 = 6,784 of 23,034 MiB.
        ("l4", {"enforce_eager": True}, 0.705),
        # At least 10 GiB of 81,559 MiB.
        ("h100", {"max_num_batched_tokens": 2048}, 0.874),
    ],
)
def test_sglang_holds_back_what_it_estimates(
    gpu: str, fields: dict[str, Any], fraction: float
) -> None:
    what = deployment(made_model(attention()), gpu=find_gpu(gpu), **fields)
    assert Sglang().default_utilization(what) == fraction


def test_a_latent_cache_costs_sglang_more_graph_memory() -> None:
    """512 + 12,288 + 128 + 512 + 1,536 = 14,976 of 81,559 MiB."""
    what = deployment(made_model(attention(head_dim=576, latent=True)))
    assert Sglang().default_utilization(what) == 0.816


def test_sglangs_budget_by_hand() -> None:
    """(82 - 2 - 1) GiB x 0.8 - 20 GiB = 43.2 GiB of 131,072 B tokens."""
    what = deployment(
        find_model("llama-3.1-8b"),
        gpu=made_gpu(80 * GIB, driver_bytes=2 * GIB),
        max_model_len=8192,
        memory_utilization=0.8,
        weights=known(20),
        other=known(1),
    )
    names = [term.name for term in Sglang().budget(what, 0)]
    assert names == ["gpu_memory", "driver", "non_torch", "held_back", "weights"]
    pool = pool_of("sglang", what)
    assert abs(pool.num_tokens - 43.2 * 2**13) < 1
    assert pool.sentences(what) == (
        "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 353894, K size: 21.60 GB, V size: 21.60 GB",
        "max_total_num_tokens=353894, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        "max_running_requests=4096, context_len=8192",
    )
    assert (pool.fits(353_893), pool.fits(353_894)) == (True, False)


def test_sglang_cuts_pages_off() -> None:
    what = deployment(made_model(attention()), block_size=64, kv_cache_memory_bytes=100 * 4096)
    pool = pool_of("sglang", what)
    assert (pool.num_blocks, pool.num_tokens, pool.block_bytes) == (1, 64, 64 * 4096)
    assert pool.bytes_for(65) == 2 * 64 * 4096


def test_sglang_keeps_windows_in_a_pool_of_their_own() -> None:
    """A cell is 4,096 + 0.8 x 4,096 = 7,372.8 B: 1 GiB holds 145,635 and 0.8 of that, 116,508."""
    layers = [attention(2, 256), attention(2, 256, window=128)] * 2
    what = deployment(made_model(*layers, name="GPT-OSS-mini"), kv_cache_memory_bytes=GIB)
    pool = pool_of("sglang", what)
    assert isinstance(pool, SglangPool)
    assert (pool.num_tokens, pool.window_tokens) == (145_635, 116_508)
    assert pool.pool_bytes <= GIB
    # Window, 128 steps between evictions, two pages.
    assert pool.bytes_for(10_000) == 10_000 * 4096 + (128 + 128 + 2) * 4096
    assert pool.concurrency(10_000) == Fraction(145_635, 10_000)
    assert pool.sentences(what)[0] == (
        "Use sliding window memory pool. full_layer_tokens=145635, swa_layer_tokens=116508"
    )
    others = pool_of("sglang", deployment(made_model(*layers), kv_cache_memory_bytes=GIB))
    assert others.num_tokens == GIB // (2 * 4096)


def test_a_window_pool_without_room_for_one_request_serves_none() -> None:
    layers = [attention(), attention(window=4096)]
    made = made_model(*layers, name="gpt-oss-mini")
    small = pool_of("sglang", deployment(made, kv_cache_memory_bytes=5000 * 7372))
    large = pool_of("sglang", deployment(made, kv_cache_memory_bytes=6000 * 7373))
    assert not small.fits(1)  # 4,000 slots of 4,096 + 1
    assert large.fits(1)


def test_sglang_divides_memory_between_states_and_kv() -> None:
    """190 MiB: 90 for states of 1 MiB, one of them for padding; 100 MiB of KV, 25,600 tokens."""
    model = made_model(attention(), state(2**20))
    what = deployment(model, kv_cache_memory_bytes=190 * 2**20)
    pool = pool_of("sglang", what)
    assert isinstance(pool, SglangPool)
    assert (pool.num_states, pool.num_tokens) == (89, 25_600)
    assert pool.concurrency(1) == Fraction(89, 5)


def test_trtllms_fraction_is_of_what_is_free() -> None:
    """(82 - 2 - 16 - 3 - 0.5 - 0.5) GiB x 0.9 = 54 GiB: 13,824 blocks of 32 x 131,072 B."""
    what = deployment(
        find_model("llama-3.1-8b"),
        gpu=made_gpu(80 * GIB, driver_bytes=2 * GIB),
        weights=known(16),
        activations=known(3),
        cuda_graphs=known(0.5),
        other=known(0.5),
    )
    pool = pool_of("trtllm", what)
    assert (pool.num_blocks, pool.block_size, pool.num_tokens) == (13_824, 32, 442_368)
    assert pool.sentences(what) == (
        "Estimated max memory in KV cache : 54.00 GiB",
        "Number of tokens per block: 32.",
        "[MemUsageChange] Allocated 54.00 GiB for max tokens in paged KV cache (442368).",
    )


def test_trtllm_cuts_the_length_to_its_pool() -> None:
    """As a public log has it: 8,224 tokens where 131,072 were asked for."""
    what = deployment(made_model(attention()), max_model_len=131_072, num_gpu_blocks_override=257)
    lines = pool_of("trtllm", what).sentences(what)
    assert (
        "Attention window size 131072 exceeds upper bound 8224 for available blocks. Reducing to 8224."
        in lines
    )
    assert "Adjusted max_seq_len to 8224" in lines


def test_trtllm_stores_windows_in_full_and_states_for_all() -> None:
    windows = made_model(attention(), attention(window=128))
    assert pool_of("trtllm", deployment(windows, kv_cache_memory_bytes=GIB)).bytes_for(4096) == (
        4096 * 2 * 4096
    )
    what = deployment(made_model(attention(), state(2**20)), max_num_seqs=100)
    (states,) = [
        t for t in find_accounting("trtllm").budget(what, 0) if t.name == "recurrent_states"
    ]
    assert states.num_bytes == -100 * 2**20


def test_exact_counts_to_the_token_and_to_the_window() -> None:
    model = made_model(attention(), attention(window=100), state(777))
    what = deployment(model, kv_cache_memory_bytes=10**8)
    pool = pool_of("exact", what)
    assert pool.bytes_for(1) == 2 * 4096 + 777
    assert pool.bytes_for(99) == 2 * 99 * 4096 + 777
    assert pool.bytes_for(1000) == (1000 + 100) * 4096 + 777
    assert pool.concurrency(1000) == Fraction(10**8, pool.bytes_for(1000))
    assert pool.num_tokens == math.floor(Fraction(10**8 * 4096, (4096 + 100) * 4096 + 777))
    assert pool.num_reserved_blocks == 0
    blocks = pool_of("exact", deployment(model, block_size=32, kv_cache_memory_bytes=10**8))
    assert blocks.bytes_for(1000) == (1024 + 128) * 4096 + 777
