"""What the tests of the bug log share: sequences in blocks, written out step by step."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kvtwin.gpu.arguments import Tuning
from kvtwin.gpu.check.reference import attention

NAN = float("nan")
SMALL = Tuning(16, num_warps=4, num_stages=2, query_rows=16)
FP32 = 2e-5  # bound of an error in fp32 for a few hundred keys


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Standard normal numbers, the same for the same seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@dataclass
class Paged:
    """A poisoned pool, and sequences that were put into it."""

    num_blocks: int
    block_size: int
    num_kv_heads: int = 2
    head_dim: int = 64
    dtype: torch.dtype = torch.float32
    k: torch.Tensor = field(init=False)
    v: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        shape = (self.num_blocks, self.block_size, self.num_kv_heads, self.head_dim)
        self.k = torch.full(shape, NAN, dtype=self.dtype)
        self.v = torch.full(shape, NAN, dtype=self.dtype)

    def put(
        self, seed: int, num_tokens: int, blocks: Sequence[int], first: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write random K and V of tokens [first, first + num_tokens) into `blocks`, return them."""
        shape = (num_tokens, self.num_kv_heads, self.head_dim)
        key, value = (normal(seed + part, *shape, dtype=self.dtype) for part in (0, 1000))
        for number in range(num_tokens):
            token = first + number
            block, slot = blocks[token // self.block_size], token % self.block_size
            self.k[block, slot], self.v[block, slot] = key[number], value[number]
        return key, value

    def query(self, seed: int, num_tokens: int, group: int = 2) -> torch.Tensor:
        """Random queries."""
        return normal(seed, num_tokens, self.num_kv_heads * group, self.head_dim, dtype=self.dtype)


def tables(*rows: Sequence[int], width: int | None = None, fill: int = -1) -> torch.Tensor:
    """int32 block tables of the given entries, `fill` behind them."""
    width = max(map(len, rows)) if width is None else width
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows], dtype=torch.int32)


def ints(*numbers: int) -> torch.Tensor:
    """int32 lengths or starts."""
    return torch.tensor(numbers, dtype=torch.int32)


def error_of(
    out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
) -> float:
    """Largest distance of one sequence's output from the float64 reference; NaN if any is."""
    arrays = (tensor.double().numpy() for tensor in (query, key, value))
    options = {"scale": 0.125} | options
    if options.get("sinks") is not None:
        options["sinks"] = options["sinks"].double().numpy()
    return float((out.double() - torch.from_numpy(attention(*arrays, **options))).abs().max())


def decode(ops: Any, pool: Paged, query: torch.Tensor, *rest: Any, **options: Any) -> Any:
    """`ops.paged_decode` on the pool, in small tiles."""
    options = {"scale": 0.125, "tuning": SMALL} | options
    return ops.paged_decode(query, pool.k, pool.v, *rest, **options)


def prefill(ops: Any, pool: Paged, query: torch.Tensor, *rest: Any, **options: Any) -> Any:
    """`ops.paged_prefill` on the pool, in small tiles."""
    options = {"scale": 0.125, "tuning": SMALL} | options
    return ops.paged_prefill(query, pool.k, pool.v, *rest, **options)
