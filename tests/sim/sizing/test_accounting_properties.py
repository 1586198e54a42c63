"""What must hold under every accounting, whatever the model."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from made_models import GIB, attention, deployment, made_gpu, made_model, state

from kvtwin.sim import ModelSpec
from kvtwin.sim.layers import AttentionKv
from kvtwin.sim.sizing.accounting import SizedPool
from kvtwin.sim.sizing.deployment import Deployment
from kvtwin.sim.sizing.engines.vllm import VllmPool
from kvtwin.sim.sizing.registry import accounting_names, find_accounting
from kvtwin.sim.sizing.size import size
from kvtwin.sim.sizing.terms import sum_bytes
from kvtwin.traces import UserError

every_accounting = pytest.mark.parametrize("name", accounting_names())
STORES_WINDOWS_IN_FULL = ("vllm-no-hybrid", "trtllm")


def pool_of(name: str, what: Deployment) -> SizedPool:
    accounting = find_accounting(name)
    return accounting.pool(what, 0, sum_bytes(accounting.budget(what, 0)))


@st.composite
def attention_models(draw: st.DrawFn) -> ModelSpec:
    """Full layers and layers of one window, of equal shape, or latent caches; in any order."""
    heads, head_dim = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([64, 128]))
    window = draw(st.sampled_from([1, 100, 128, 1024]))
    num_full, num_windows = draw(st.integers(1, 6)), draw(st.integers(0, 8))
    layers = [attention(heads, head_dim)] * num_full
    layers += [attention(heads, head_dim, window)] * num_windows
    if not num_windows and draw(st.booleans()):
        layers = [attention(head_dim=576, latent=True)] * num_full
    name = draw(st.sampled_from(["made", "gpt-oss-made"]))
    return made_model(*draw(st.permutations(layers)), name=name)


@st.composite
def any_models(draw: st.DrawFn) -> ModelSpec:
    """With recurrent states, too."""
    model = draw(attention_models())
    states = [state(draw(st.integers(1, 3_000_000)))] * draw(st.integers(0, 3))
    return made_model(*model.layers, *states, name=model.name)


def without_windows(model: ModelSpec) -> ModelSpec:
    full = [
        replace(layer, window=0) if isinstance(layer, AttentionKv) else layer
        for layer in model.layers
    ]
    return replace(model, layers=tuple(full))


settings = st.fixed_dictionaries(
    {
        "block_size": st.sampled_from([None, 16, 64]),
        "max_num_batched_tokens": st.sampled_from([None, 1, 2048]),
        "max_model_len": st.sampled_from([1, 1000, 50_000]),
        "kv_cache_memory_bytes": st.integers(0, 4 * GIB),
    }
)


@every_accounting
@given(
    model=any_models(), fields=settings, shorter=st.integers(1, 60_000), more=st.integers(0, 999)
)
def test_longer_requests_never_need_less(
    name: str, model: ModelSpec, fields: dict[str, Any], shorter: int, more: int
) -> None:
    try:
        pool = pool_of(name, deployment(model, **fields))
    except UserError:
        assert name == "vllm-no-hybrid"
        return
    longer = shorter + more
    assert 0 < pool.bytes_for(shorter) <= pool.bytes_for(longer)
    assert pool.bytes_for(longer) <= pool.bytes_to_admit(longer)
    assert pool.bytes_to_admit(shorter) <= pool.bytes_to_admit(longer)
    assert pool.concurrency(shorter) >= pool.concurrency(longer)
    assert pool.fits(shorter) or not pool.fits(longer)
    assert pool.usable_bytes <= pool.pool_bytes <= fields["kv_cache_memory_bytes"]


@every_accounting
@given(model=any_models(), fields=settings)
def test_the_longest_request_is_the_longest(
    name: str, model: ModelSpec, fields: dict[str, Any]
) -> None:
    try:
        sizing = size(deployment(model, **fields), find_accounting(name))
    except UserError:
        assert name == "vllm-no-hybrid"
        return
    longest = sizing.longest_request
    assert longest is not None  # there is a layer that stores every token
    assert longest == 0 or sizing.pool.fits(longest)
    assert not sizing.pool.fits(longest + 1)
    assert sizing.works == (longest >= fields["max_model_len"])


@every_accounting
@given(
    model=attention_models(),
    memory_gib=st.integers(2, 90),
    low=st.integers(1, 99),
    high=st.integers(1, 100),
)
def test_more_utilization_never_means_fewer_blocks(
    name: str, model: ModelSpec, memory_gib: int, low: int, high: int
) -> None:
    low, high = sorted((low, high))
    what = deployment(model, gpu=made_gpu(memory_gib * GIB))
    blocks = [
        pool_of(name, replace(what, memory_utilization=percent / 100)).num_blocks
        for percent in (low, high)
    ]
    assert blocks[0] <= blocks[1]
    if high - low >= 10 and blocks[0]:
        assert blocks[0] < blocks[1]


@every_accounting
@given(model=attention_models(), fields=settings)
def test_fp8_halves_the_bytes(name: str, model: ModelSpec, fields: dict[str, Any]) -> None:
    """So the tokens at least double: 2 floor(x) <= floor(2 x)."""
    half = replace(deployment(model, **fields), kv_cache_dtype="fp8")
    whole = replace(half, kv_cache_dtype="auto")
    accounting = find_accounting(name)
    assert 2 * accounting.block_bytes(half, 0) == accounting.block_bytes(whole, 0)
    pools = pool_of(name, half), pool_of(name, whole)
    assert pools[0].num_blocks >= 2 * pools[1].num_blocks
    assert 2 * pools[0].bytes_for(12_345) == pools[1].bytes_for(12_345)


@every_accounting
@given(model=attention_models(), fields=settings)
def test_ranks_beyond_the_kv_heads_gain_nothing(
    name: str, model: ModelSpec, fields: dict[str, Any]
) -> None:
    heads = 1 if model.mla_latent_dim else model.num_kv_heads
    what = deployment(model, **fields)
    pools = [pool_of(name, replace(what, tensor_parallel_size=heads * n)) for n in (1, 2, 8)]
    assert pools[0].bytes_for(5000) == pools[1].bytes_for(5000) == pools[2].bytes_for(5000)
    assert len({pool.num_blocks for pool in pools}) == 1
    if heads > 1:
        alone = pool_of(name, what)
        assert pools[0].bytes_for(5000) * heads == alone.bytes_for(5000)


@every_accounting
@given(model=attention_models(), fields=settings, num_tokens=st.integers(1, 60_000))
def test_windows_never_need_more_than_full_layers(
    name: str, model: ModelSpec, fields: dict[str, Any], num_tokens: int
) -> None:
    """vLLM's padding layers are the exception: they are counted as if they held tokens."""
    assume(model.num_window_layers)
    windowed = pool_of(name, deployment(model, **fields))
    full = pool_of(name, deployment(without_windows(model), **fields))
    padded = Padding.of(windowed)
    assert windowed.bytes_for(num_tokens) <= full.bytes_for(num_tokens) * padded
    # An engine that plans for a window's start inside a block counts one block more a group.
    more = padded.num_window_groups * windowed.block_bytes
    assert windowed.bytes_to_admit(num_tokens) <= full.bytes_to_admit(num_tokens) * padded + more
    if name in STORES_WINDOWS_IN_FULL:
        assert windowed.bytes_for(num_tokens) == full.bytes_for(num_tokens)
    elif name == "exact" and num_tokens > model.sliding_window + 64:
        assert windowed.bytes_for(num_tokens) < full.bytes_for(num_tokens)


class Padding(float):
    """Layers with padding over layers without, of vLLM's groups; 1 for every other engine."""

    num_window_groups = 0

    @classmethod
    def of(cls, pool: SizedPool) -> "Padding":
        if not isinstance(pool, VllmPool):
            return cls(1)
        layers = sum(len(group.page_bytes) for group in pool.groups)
        padding = sum(group.num_padding_layers for group in pool.groups)
        share = cls((layers + padding) / layers + 1e-9 * bool(padding))
        share.num_window_groups = sum(group.spec.kind == "window" for group in pool.groups)
        return share


def test_the_exceptions_are_reached() -> None:
    """10 full layers and 11 with a window are two groups of 11: 22 pages where 21 would do."""
    layers = [attention()] * 10, [attention(window=128)] * 11
    windowed = pool_of(
        "vllm", deployment(made_model(*layers[0], *layers[1]), kv_cache_memory_bytes=GIB)
    )
    full = pool_of("vllm", deployment(made_model(*[attention()] * 21), kv_cache_memory_bytes=GIB))
    assert windowed.bytes_for(16) == 22 * 65_536 > full.bytes_for(16) == 21 * 65_536
    assert windowed.bytes_to_admit(16) == (1 + 2) * 11 * 65_536
    assert math.isclose(float(Padding.of(windowed)), 22 / 21, rel_tol=1e-6)
