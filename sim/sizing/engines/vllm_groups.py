"""How vLLM 0.32 groups layers that share a block table (`v1/core/kv_cache_utils.py`)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvtwin.traces import UserError

from .vllm_specs import LayerSpec

Specs = Mapping[int, LayerSpec]
# A bucket smaller than this factor of the largest sets the size of the groups.
PADDING_FACTOR = 1.5


@dataclass(frozen=True)
class Group:
    """Layers that share a block table; a block of any group has the same bytes.

    `page_bytes`: by layer index. `num_padding_layers` are in the block and in nobody's use.
    """

    spec: LayerSpec
    page_bytes: Mapping[int, int]
    num_padding_layers: int = 0

    def bytes_of(self, layers: range) -> int:
        """Bytes of a block in those layers, half-open."""
        return sum(size for index, size in self.page_bytes.items() if index in layers)

    def blocks_to_admit(self, num_tokens: int, *, in_flight: int, states: int) -> int:
        """Blocks that vLLM plans for one request of at most `num_tokens`.

        `v1/kv_cache_interface.py`, max_memory_usage_bytes of each spec: a window counts its last
        W - 1 tokens and all tokens in flight, and one block more, because it may begin inside one.
        A chunk is counted in full, without that block.
        """
        spec = self.spec
        if spec.kind == "state":
            return states
        if spec.keeps_all_tokens:
            return math.ceil(num_tokens / spec.block_size)
        if spec.kind == "chunk":
            return math.ceil(min(spec.window + in_flight, num_tokens) / spec.block_size)
        kept = min(spec.window - 1 + in_flight, num_tokens)
        return math.ceil(kept / spec.block_size) + 1

    def blocks_held(self, num_tokens: int, *, states: int) -> int:
        """Blocks of one decoding request with `num_tokens` committed tokens, at most.

        Blocks wholly behind the window are freed before each step: W tokens lie in at most
        ceil((W - 1) / block size) + 1. A chunk of whole blocks begins with one, so it lies in W /
        block size.
        """
        spec = self.spec
        if spec.kind == "state":
            return states
        blocks = math.ceil(num_tokens / spec.block_size)
        if spec.keeps_all_tokens:
            return blocks
        if spec.kind == "chunk" and spec.window % spec.block_size == 0:
            return min(blocks, spec.window // spec.block_size)
        return min(blocks, math.ceil((spec.window - 1) / spec.block_size) + 1)


def group_layers(specs: Specs, *, hybrid: bool) -> tuple[Group, ...]:
    """get_kv_cache_groups: one group if all layers need the same slots, else groups of equal size.

    `hybrid` False: windows are stored in full where the model has full attention, too. Packing of
    pages that differ (_get_packed_kv_cache_groups) needs a block-outermost layout, which is no
    backend's first choice, and is left out. Raises UserError where vLLM refuses.
    """
    if not hybrid:
        specs = _store_windows_in_full(specs)
    if _is_one_type(specs):
        return (_one_group(specs),)
    unified = _unify_page_bytes(specs)
    if unified is None:
        return (_one_group(_store_windows_in_full(specs)),)
    return _groups_of_equal_size(unified)


def block_bytes(groups: tuple[Group, ...], layers: range) -> int:
    """Bytes of one block on the rank that has `layers`: the largest group's
    (_get_kv_cache_bytes_per_block)."""
    return max(group.bytes_of(layers) for group in groups)


def _one_group(specs: Specs) -> Group:
    first = next(iter(specs.values()))
    return Group(first, {index: spec.page_bytes for index, spec in specs.items()})


def _is_one_type(specs: Specs) -> bool:
    """Whether every layer needs the same number of token slots
    (UniformTypeKVCacheSpecs.is_uniform_type)."""
    values = list(specs.values())
    if len({spec.block_size for spec in values}) > 1:
        return False
    if all(spec.keeps_all_tokens for spec in values):
        return True
    first = values[0]
    if first.kind == "state":
        return all((spec.kind, spec.page_bytes) == ("state", first.page_bytes) for spec in values)
    return all((spec.kind, spec.window) == (first.kind, first.window) for spec in values)


def _store_windows_in_full(specs: Specs) -> dict[int, LayerSpec]:
    """_promote_local_kv_cache_specs: every token of every layer is stored."""
    if _is_one_type(specs):
        return dict(specs)
    full_sizes = {spec.block_size for spec in specs.values() if spec.keeps_all_tokens}
    stored = dict(specs)
    for index, spec in specs.items():
        if full_sizes and spec.window and not spec.keeps_all_tokens:
            block_size = next(iter(full_sizes)) if len(full_sizes) == 1 else spec.block_size
            page_bytes = spec.page_bytes * block_size // spec.block_size
            stored[index] = spec.stored_in_full(block_size, page_bytes)
    if not _is_one_type(stored) or len({spec.window for spec in stored.values()} - {0}) > 1:
        raise UserError(
            "vLLM cannot store the layers of this model in one group, which it needs to without "
            "its hybrid KV cache manager; use --accounting vllm"
        )
    return stored


def _unify_page_bytes(specs: Specs) -> dict[int, LayerSpec] | None:
    """unify_kv_cache_spec_page_size: larger blocks for small pages, or padding.

    None: a latent cache that cannot be padded lies beside windows, which are then stored in full.
    """
    largest = max(spec.page_bytes for spec in specs.values())
    unified: dict[int, LayerSpec] = {}
    for index, spec in specs.items():
        if spec.kind != "state" and largest % spec.page_bytes == 0:
            block_size = spec.block_size * (largest // spec.page_bytes)
            unified[index] = replace(spec, block_size=block_size, page_bytes=largest)
        elif spec.kind in ("state", "full", "window"):
            unified[index] = replace(spec, page_bytes=largest)
        elif _windows_can_be_stored_in_full(specs):
            return None
        else:
            raise UserError(
                f"vLLM cannot give layer {index} pages of {largest:,} bytes: a latent cache is not "
                "padded; another --kv-cache-dtype or --block-size may fit"
            )
    return unified


def _windows_can_be_stored_in_full(specs: Specs) -> bool:
    kinds = {spec.kind for spec in specs.values()}
    return {"latent", "window"} <= kinds and "latent window" not in kinds


def _groups_of_equal_size(specs: Specs) -> tuple[Group, ...]:
    """_get_kv_cache_groups_uniform_page_size.

    A group has as many layers as the smallest bucket of equal specs, or as the largest if that is
    under 1.5 times the smallest. Layer j of a bucket goes to its group j mod groups.
    """
    buckets: dict[LayerSpec, list[int]] = {}
    for index, spec in specs.items():
        buckets.setdefault(spec, []).append(index)
    sizes = [len(indices) for indices in buckets.values()]
    group_size = max(sizes) if max(sizes) < min(sizes) * PADDING_FACTOR else min(sizes)
    groups: list[Group] = []
    for spec, indices in buckets.items():
        num_groups = math.ceil(len(indices) / group_size)
        for start in range(num_groups):
            chosen = indices[start::num_groups]
            pages = dict.fromkeys(chosen, spec.page_bytes)
            groups.append(Group(spec, pages, group_size - len(chosen)))
    return tuple(groups)
