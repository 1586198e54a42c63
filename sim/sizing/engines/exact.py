"""No engine: what the tokens need, to the byte."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from ..accounting import Accounting, SizedPool
from ..deployment import Deployment
from ..estimates import profiled_terms
from ..stage_bytes import kept_by_window, kv_bytes_per_token, state_bytes_per_request
from ..terms import Term


@dataclass(frozen=True)
class ExactPool(SizedPool):
    """Every layer takes what it needs of `available_bytes`; nothing is reserved.

    `windows`: (tokens kept, 0 for all; bytes of a token) of the attention layers that keep alike.
    A block counts the layers as if none had a window; `num_tokens` is what requests of
    `max_model_len` keep of the pool if windows are credited.
    """

    num_blocks: int
    block_size: int
    block_bytes: int
    windows: tuple[tuple[int, int], ...]
    state_bytes: int
    max_model_len: int
    available_bytes: int
    num_reserved_blocks: int = 0

    @property
    def pool_bytes(self) -> int:
        return max(0, self.available_bytes)

    @property
    def num_tokens(self) -> int:
        if self._all_alike:
            return self.num_blocks * self.block_size
        return math.floor(self.concurrency(self.max_model_len) * self.max_model_len)

    @property
    def derived(self) -> str:
        if self._all_alike:
            return ""
        return (
            f"requests of max_model_len ({self.max_model_len:,}) tokens that the pool holds, "
            "x max_model_len"
        )

    @property
    def _all_alike(self) -> bool:
        return not self.state_bytes and all(window == 0 for window, _ in self.windows)

    def bytes_for(self, num_tokens: int) -> int:
        attention = (
            self._whole_blocks(min(num_tokens, window or num_tokens)) * token_bytes
            for window, token_bytes in self.windows
        )
        return sum(attention) + self.state_bytes

    def concurrency(self, num_tokens: int) -> Fraction:
        return Fraction(self.pool_bytes, self.bytes_for(num_tokens))

    def fits(self, num_tokens: int) -> bool:
        return self.bytes_for(num_tokens) <= self.pool_bytes

    def sentences(self, deployment: Deployment) -> tuple[str, ...]:
        """No engine, no log."""
        return ()

    def _whole_blocks(self, num_tokens: int) -> int:
        return math.ceil(num_tokens / self.block_size) * self.block_size


class Exact(Accounting):
    """Layers with a window keep min(length, window) tokens, in whole blocks where one is given."""

    name: ClassVar[str] = "exact"
    summary: ClassVar[str] = "no engine: the bytes that the tokens need"
    utilization_flag: ClassVar[str] = "--gpu-memory-utilization"
    utilization_meaning: ClassVar[str] = "of the memory that CUDA reports, for everything"

    def default_utilization(self, deployment: Deployment) -> float:
        return 1.0

    def default_max_num_seqs(self, deployment: Deployment) -> int:
        return 256

    def default_max_num_batched_tokens(self, deployment: Deployment) -> int:
        return 8192

    def memory_terms(self, deployment: Deployment, stage: int) -> tuple[Term, ...]:
        return profiled_terms(
            deployment,
            stage,
            utilization=self.utilization(deployment),
            flag=self.utilization_flag,
            num_batched_tokens=self.max_num_batched_tokens(deployment),
            num_sampled_sequences=self.max_num_seqs(deployment),
        )

    def block_bytes(self, deployment: Deployment, stage: int) -> int:
        """Of all attention layers, or of the states alone where there are none."""
        block_size = deployment.block_size or 1
        attention = block_size * kv_bytes_per_token(deployment, stage)
        return attention or state_bytes_per_request(deployment, stage)

    def pool(self, deployment: Deployment, stage: int, kv_bytes: int) -> ExactPool:
        num_bytes = self.block_bytes(deployment, stage)
        return ExactPool(
            num_blocks=max(0, kv_bytes // num_bytes),
            block_size=deployment.block_size or 1,
            block_bytes=num_bytes,
            windows=tuple(sorted(kept_by_window(deployment, stage).items())),
            state_bytes=state_bytes_per_request(deployment, stage),
            max_model_len=deployment.max_model_len,
            available_bytes=kv_bytes,
        )
