"""Which layers of a model share block tables in vLLM."""

from __future__ import annotations

from math import gcd

from kvtwin.traces import UserError

from .block_groups import BlockGroups
from .sizing.deployment import Deployment
from .sizing.engines.vllm import Vllm
from .sizing.engines.vllm_no_hybrid import VllmNoHybrid
from .sizing.stage_bytes import kv_bytes_per_token


def vllm_groups(deployment: Deployment, *, hybrid: bool) -> BlockGroups | None:
    """The groups of vLLM 0.32 with or without its hybrid KV cache manager.

    None where they cannot be simulated: recurrent states, blocks whose tokens differ from group to group, pages that
    are padded, or a model that vLLM refuses.
    """
    try:
        groups = (Vllm() if hybrid else VllmNoHybrid()).groups(deployment)
    except UserError:
        return None
    assert deployment.block_size is not None
    page_bytes = sum(sum(group.page_bytes.values()) for group in groups)
    if page_bytes != deployment.block_size * kv_bytes_per_token(deployment, 0):
        return None  # more than the tokens take: states, larger blocks, or padding
    nums = [len(group.page_bytes) for group in groups]
    return BlockGroups(
        tuple(None if group.spec.keeps_all_tokens else group.spec.window for group in groups),
        tuple(num // gcd(*nums) for num in nums),
    )


def window_note(
    deployment: Deployment, found: BlockGroups | None, num_blocks_override: int | None
) -> str:
    """What a reader must know about windows; empty where the model has none. `found`: of `vllm_groups`."""
    model = deployment.model
    if not model.window_note or found is None or found.has_one_table:
        return model.window_note and (
            f"{model.window_note}; every layer's KV is kept in full, so an engine that frees it behind the window "
            "holds more long requests"
            + (
                "; --num-gpu-blocks-override counts blocks of all of them"
                if num_blocks_override is not None
                else ""
            )
        )
    said = (
        f"{model.window_note}: vllm-v1, with and without caching, frees what is behind; policies whose blocks are of "
        "all layers keep each layer's KV in full, so that they hold fewer long requests"
    )
    if len(found.windows) == 1:
        return said
    of_all, of_block = sum(found.token_slots), found.block_token_slots
    num_layers = len(model.attention_layers) * of_block // of_all
    said += f"; vLLM's blocks have {num_layers} layers each, in {len(found.windows)} block tables of a request"
    if num_blocks_override is not None:
        said += (
            f", and --num-gpu-blocks-override counts those: {num_blocks_override:,} have the bytes of "
            f"{num_blocks_override * of_block // of_all:,} of all layers"
        )
    return said
