"""The KV pool of a device: all layers in one tensor, poisoned wherever nothing was written."""

from collections.abc import Sequence

import torch

from ..arguments.swaps import allocate_host_pool
from ..audit.poison import poison
from .content import ContentShape

Runs = Sequence[tuple[int, int]]


class DevicePool:
    """K and V of `num_slots` token slots in every layer, in blocks of `block_slots`.

    Slot s is slot s % block_slots of block s // block_slots. Poisoned as a whole when it is made.
    Raises torch.OutOfMemoryError, or RuntimeError on a CPU, where it does not fit.
    """

    def __init__(self, shape: ContentShape, num_slots: int, block_slots: int, device: str) -> None:
        assert num_slots % block_slots == 0, f"{num_slots} slots in blocks of {block_slots}"
        self.block_slots = block_slots
        self.num_slots = num_slots
        row = (shape.num_kv_heads, shape.head_dim)
        sizes = (shape.num_layers, 2, num_slots // block_slots, block_slots, *row)
        self.tensor = torch.empty(sizes, dtype=shape.dtype, device=device)
        self._by_slot = self.tensor.view(shape.num_layers, 2, num_slots, *row)
        self.poison([(0, num_slots)])

    @property
    def layers(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """(K, V) of each layer, [num_blocks, block_slots, num_kv_heads, head_dim], as kernels take them."""
        return [(layer[0], layer[1]) for layer in self.tensor]

    def poison(self, runs: Runs) -> None:
        """Nobody has written these runs of slots any more."""
        poison((half for layer in self.tensor for half in layer), runs)

    def move(self, source: int, target: int, num: int) -> None:
        """Copy a run of slots in every layer; the two runs may overlap."""
        copied = self._by_slot[:, :, source : source + num]
        if abs(source - target) < num:
            copied = copied.clone()
        self._by_slot[:, :, target : target + num] = copied


class HostPool:
    """Blocks in host memory, pinned for a GPU; as many as have been needed so far.

    `layers`: [num_host_blocks, 2, block_slots, num_kv_heads, head_dim] each, as kernels take them.
    """

    def __init__(self, pool: DevicePool) -> None:
        self._device_layers = [k_pool for k_pool, _ in pool.layers]
        self.layers = [allocate_host_pool(k_pool, 0) for k_pool in self._device_layers]

    def reserve(self, num_blocks: int) -> None:
        """Make room for so many blocks; what is there stays."""
        if num_blocks <= len(self.layers[0]):
            return
        for number, (old, k_pool) in enumerate(zip(self.layers, self._device_layers, strict=True)):
            self.layers[number] = allocate_host_pool(k_pool, 2 * num_blocks)
            self.layers[number][: len(old)] = old
