"""What is timed: a plain decode, and one thing after the other around it."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from kvtwin.sim.traffic import AttentionShape


@dataclass(frozen=True)
class BenchShape:
    """`num_seqs` sequences of `context_len` tokens each, bf16, one layer. Llama-3.1-8B's heads."""

    num_seqs: int
    context_len: int
    block_size: int = 16
    num_kv_heads: int = 8
    group: int = 4
    head_dim: int = 128

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16

    @property
    def num_heads(self) -> int:
        return self.num_kv_heads * self.group

    @property
    def num_tokens(self) -> int:
        """Tokens of KV that a step reads."""
        return self.num_seqs * self.context_len

    @property
    def kv_bytes(self) -> int:
        """K and V of all tokens."""
        return 2 * self.num_tokens * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    def attention_shape(self, *, paged: bool) -> AttentionShape:
        """For the traffic model."""
        return AttentionShape(
            self.num_heads,
            self.num_kv_heads,
            self.head_dim,
            self.dtype.itemsize,
            self.block_size if paged else None,
        )


def bench_shapes() -> list[BenchShape]:
    """In order of interest, so that what a time limit cuts off is the least of it."""
    return list(dict.fromkeys(_shapes()))


def dry_shapes() -> list[BenchShape]:
    """As many different code paths as a machine without a GPU gets through in seconds."""
    return [
        BenchShape(2, 40, num_kv_heads=2, head_dim=16),
        BenchShape(1, 33, block_size=5, num_kv_heads=1, head_dim=16),
    ]


def _shapes() -> Iterator[BenchShape]:
    plain = BenchShape(64, 4096)
    yield plain
    for num_seqs, context_len in ((256, 1024), (8, 32768), (128, 8192), (1, 131072)):
        yield BenchShape(num_seqs, context_len)
    for block_size in (1, 8, 32, 64, 128):
        yield BenchShape(64, 4096, block_size=block_size)
    for group in (1, 2, 8, 16):
        yield BenchShape(64, 4096, group=group)
    for num_seqs, context_len in ((1, 4096), (8, 1024), (32, 512)):
        yield BenchShape(num_seqs, context_len)
