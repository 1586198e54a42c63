"""vLLM's arithmetic against numbers worked out by hand."""

from fractions import Fraction

import pytest
from made_models import GIB, attention, deployment, made_gpu, made_model, state

from kvtwin.sim import find_gpu, find_model
from kvtwin.sim.sizing.deployment import Given
from kvtwin.sim.sizing.engines.vllm import Vllm, VllmPool
from kvtwin.sim.sizing.engines.vllm_no_hybrid import VllmNoHybrid
from kvtwin.sim.sizing.terms import sum_bytes
from kvtwin.traces import UserError


def pool_of(what, accounting=None, stage: int = 0) -> VllmPool:
    accounting = accounting or Vllm()
    pool = accounting.pool(what, stage, sum_bytes(accounting.budget(what, stage)))
    assert isinstance(pool, VllmPool)
    return pool


def known(num_bytes: int) -> Given:
    return Given(num_bytes, "given", "by hand")


def test_budget_and_sentences_by_hand() -> None:
    """80 GiB x 0.92 = 79,027,398,246.4, rounded up; less 18.8 GB: 60,227,398,247 bytes, 56.09 GiB.

    Of 81 GiB that the driver reports it keeps one, and the fraction is of what CUDA gives out.
    A block of Llama-3.1-8B has 16 x 131,072 = 2,097,152 bytes: 28,718 of them, 512 a request.
    """
    what = deployment(
        find_model("llama-3.1-8b"),
        gpu=made_gpu(80 * GIB, driver_bytes=GIB),
        max_model_len=8192,
        weights=known(16_000_000_000),
        activations=known(2_000_000_000),
        cuda_graphs=known(500_000_000),
        other=known(300_000_000),
    )
    terms = Vllm().budget(what, 0)
    assert [(term.name, term.num_bytes, term.source) for term in terms] == [
        ("gpu_memory", 81 * GIB, "catalogue"),
        ("driver", -GIB, "catalogue"),
        ("held_back", 79_027_398_247 - 85_899_345_920, "formula"),
        ("weights", -16_000_000_000, "given"),
        ("activations", -2_000_000_000, "given"),
        ("cuda_graphs", -500_000_000, "given"),
        ("non_torch", -300_000_000, "given"),
    ]
    pool = pool_of(what)
    assert (pool.num_blocks, pool.block_bytes, pool.num_reserved_blocks) == (28_718, 2_097_152, 1)
    assert pool.usable_bytes == 28_717 * 2_097_152
    assert pool.derived == ""
    assert pool.sentences(what) == (
        "Available KV cache memory: 56.09 GiB",
        "GPU KV cache size: 459,488 tokens, Maximum concurrency for 8,192 tokens per request: 56.09x",
    )


def test_limits_of_a_step_are_the_gpus() -> None:
    """`get_batch_defaults`: an A100 counts as a small GPU."""
    limits = {
        gpu: (
            Vllm().max_num_batched_tokens(deployment(made_model(attention()), gpu=find_gpu(gpu))),
            Vllm().max_num_seqs(deployment(made_model(attention()), gpu=find_gpu(gpu))),
        )
        for gpu in ("b200", "h100", "a100-80gb", "l4")
    }
    assert limits == {
        "b200": (16_384, 1_024),
        "h100": (8_192, 1_024),
        "a100-80gb": (2_048, 256),
        "l4": (2_048, 256),
    }


def test_the_last_request_needs_a_block_beside_the_null_block() -> None:
    """4,096 tokens are 256 blocks: a pool of 257 serves one such request, a pool of 256 does not."""
    model = made_model(attention())
    enough = pool_of(deployment(model, num_gpu_blocks_override=257))
    scarce = pool_of(deployment(model, num_gpu_blocks_override=256))
    assert (enough.fits(4096), scarce.fits(4096)) == (True, False)
    assert scarce.concurrency(4096) == 1  # the printed figure counts the null block
    what = deployment(model, kv_cache_memory_bytes=256 * 16 * 4096)
    assert pool_of(what).sentences(what) == (
        "To serve at least one request with the model's max seq len (4096), (0.02 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (0.02 GiB). Based on the "
        "available memory, the estimated maximum model length is 4080.",
    )
    none = deployment(model, kv_cache_memory_bytes=16 * 4096)
    assert pool_of(none).sentences(none) == ("No available memory for the cache blocks.",)


def test_windows_count_what_is_in_flight() -> None:
    """gpt-oss-20b: two groups of 12 layers. At 131,072 tokens the full one needs 8,192 blocks.

    The other: window 128, two batches of 8,192 in flight: ceil((127 + 16,384) / 16) + 1 = 1,033.
    While it decodes, a request holds at most ceil(127 / 16) + 1 = 9 there.
    """
    what = deployment(
        find_model("gpt-oss-20b"),
        max_model_len=131_072,
        max_num_batched_tokens=8192,
        num_gpu_blocks_override=18_450,
    )
    pool = pool_of(what)
    assert [len(group.page_bytes) for group in pool.groups] == [12, 12]
    assert pool.block_bytes == 12 * 16 * 2048
    assert pool.concurrency(131_072) == Fraction(18_450, 9_225) == 2
    assert pool.bytes_for(131_072) == (8_192 + 9) * pool.block_bytes
    assert pool.num_tokens == 262_144
    assert "concurrency at max_model_len" in pool.derived
    stored = pool_of(what, VllmNoHybrid())
    assert stored.block_bytes == 24 * 16 * 2048
    assert stored.bytes_for(131_072) == 8_192 * stored.block_bytes


@pytest.mark.parametrize(
    ("full", "windowed", "groups", "said"),
    [
        (10, 20, [10, 10, 10], None),
        (10, 11, [10, 11], "Add 1 padding layers, may waste at most 10.00% KV cache memory"),
        (10, 15, [10, 8, 7], "Add 5 padding layers, may waste at most 33.33% KV cache memory"),
        (2, 7, [2, 2, 2, 2, 1], "Add 1 padding layers, may waste at most 14.29% KV cache memory"),
    ],
)
def test_groups_and_padding(full: int, windowed: int, groups: list[int], said: str | None) -> None:
    """11 is under 1.5 x 10, so the larger bucket sets the size; 15 is not."""
    model = made_model(*[attention()] * full, *[attention(window=512)] * windowed)
    what = deployment(model, num_gpu_blocks_override=5000)
    pool = pool_of(what)
    assert [len(group.page_bytes) for group in pool.groups] == groups
    assert pool.block_bytes == max(groups) * 16 * 4096
    padding = [line for line in pool.sentences(what) if "padding layers" in line]
    assert padding == ([said] if said else [])


@pytest.mark.parametrize(
    ("state_bytes", "block_size", "padding"),
    [(1_048_576, 256, None), (1_048_577, 272, "6.25%"), (65_000, 16, "0.82%")],
)
def test_attention_blocks_grow_to_the_size_of_a_state(
    state_bytes: int, block_size: int, padding: str | None
) -> None:
    """4,096 B a token: a page of 16 has 65,536 B, so 16 x ceil(state / 65,536) tokens."""
    model = made_model(*[attention()] * 2, *[state(state_bytes)] * 4)
    what = deployment(model, num_gpu_blocks_override=1000)
    pool = pool_of(what)
    assert pool.block_size == block_size
    assert [len(group.page_bytes) for group in pool.groups] == [2, 2, 2]
    lines = pool.sentences(what)
    raised = f"Setting attention block size to {block_size} tokens to ensure that"
    assert any(line.startswith(raised) for line in lines) == (block_size > 16)
    padded = [line for line in lines if line.startswith("Padding mamba page size by")]
    assert len(padded) == bool(padding)
    assert all(f"by {padding} to" in line for line in padded)


def test_a_state_is_kept_twice_where_prefixes_are_cached() -> None:
    """256 tokens a block: 4,096 tokens are 16 blocks, and each group of states has 2 or 1."""
    model = made_model(*[attention()] * 2, *[state(1_048_576)] * 4)
    cached = pool_of(deployment(model, num_gpu_blocks_override=1000))
    plain = pool_of(deployment(model, num_gpu_blocks_override=1000, enable_prefix_caching=False))
    assert cached.bytes_for(4096) == (16 + 2 + 2) * cached.block_bytes
    assert plain.bytes_for(4096) == (16 + 1 + 1) * plain.block_bytes


def test_small_pages_get_larger_blocks() -> None:
    """8 heads beside a window of 4: blocks of 16 and of 32 tokens have the same bytes."""
    model = made_model(attention(8), attention(4, window=512))
    pool = pool_of(deployment(model, num_gpu_blocks_override=1000))
    assert [group.spec.block_size for group in pool.groups] == [16, 32]
    assert pool.block_bytes == 16 * 4096


def test_stages_share_out_layers_and_the_fullest_has_the_fewest_blocks() -> None:
    """Five layers on two stages: three and two (get_pp_indices)."""
    what = deployment(
        made_model(*[attention()] * 5), pipeline_parallel_size=2, kv_cache_memory_bytes=GIB
    )
    assert [(stage.start, stage.stop) for stage in what.stages] == [(0, 3), (3, 5)]
    assert [pool_of(what, stage=stage).num_blocks for stage in (0, 1)] == [
        GIB // (3 * 65_536),
        GIB // (2 * 65_536),
    ]
    assert pool_of(what).in_flight == 3 * 8192


def test_without_the_hybrid_manager_states_are_refused() -> None:
    what = deployment(made_model(attention(), state(1_000_000)), kv_cache_memory_bytes=GIB)
    with pytest.raises(UserError, match="use --accounting vllm"):
        pool_of(what, VllmNoHybrid())


def test_without_the_hybrid_manager_a_model_of_windows_keeps_them() -> None:
    what = deployment(made_model(*[attention(window=512)] * 4), kv_cache_memory_bytes=GIB)
    assert pool_of(what, VllmNoHybrid()).bytes_for(4096) == 33 * 4 * 65_536
    assert pool_of(what, VllmNoHybrid()) == pool_of(what)
