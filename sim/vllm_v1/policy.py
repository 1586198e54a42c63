"""The policies: vLLM's V1 block pool, with and without prefix caching."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from operator import mul
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..policies.policy import Policy, PolicySettings, merge_runs
from .block_pool import NULL_BLOCK, BlockPool
from .request import Request


class VllmV1(Policy):
    """vLLM's V1 block for block: prefixes and answers found again by content, evicted when reused; recompute."""

    engine: ClassVar[str] = "kvtwin.sim.vllm_v1.engine:V1Engine"
    scheduling: ClassVar[str] = "vLLM V1: one token budget a step, running before waiting"
    groups_layers: ClassVar[bool] = True
    options: ClassVar[frozenset[str]] = frozenset(
        {
            "admission",
            "watermark",
            "scheduling_policy",
            "enable_chunked_prefill",
            "long_prefill_token_threshold",
            "async_scheduling",
            "free_order",
        }
    )
    reuses_prefixes: ClassVar[bool] = True
    reuses_answers: ClassVar[bool] = True

    def __init__(self, settings: PolicySettings) -> None:
        super().__init__(settings)
        self.settings = settings
        self.block_slots = settings.block_size * settings.groups.block_token_slots
        self.pool = BlockPool(self.num_slots // self.block_slots, settings.free_order == "back")
        assert self.pool.num_blocks * self.block_slots == self.num_slots, (
            f"a pool of {self.num_slots} slots is no whole number of blocks of {self.block_slots}"
        )

    def largest_need(self, num_prompt_tokens: int, num_output_tokens: int, max_tokens: int) -> int:
        settings = self.settings
        num_blocks = settings.groups.most_blocks(
            num_prompt_tokens + num_output_tokens - 1,
            settings.block_size,
            settings.max_in_flight_tokens,
            settings.max_model_len,
        )
        return num_blocks * self.block_slots

    def slots_of(self, num_blocks: Seq[int]) -> tuple[int, int]:
        """(slots for tokens, slots with padding) of so many blocks of each group."""
        settings = self.settings
        of_tokens = sum(map(mul, num_blocks, settings.groups.token_slots)) * settings.block_size
        return of_tokens, sum(num_blocks) * self.block_slots

    @property
    def largest_grant(self) -> int:
        return self.num_slots - self.block_slots  # the null block is never handed out

    def num_free_slots(self) -> int:
        return (len(self.pool.free) - self.pool.num_cached_free) * self.block_slots

    def num_cached_slots(self) -> int:
        return self.pool.num_cached_free * self.block_slots

    def _unheld(self, is_cached: bool) -> list[tuple[int, int]]:
        size = self.block_slots
        return merge_runs((block * size, size) for block in self.pool.unheld(is_cached))

    def free_runs(self) -> list[tuple[int, int]]:
        return self._unheld(False)

    def cached_runs(self) -> list[tuple[int, int]]:
        return self._unheld(True)

    def largest_free_run(self) -> int:
        return self.pool.largest_free_run() * self.block_slots

    def runs(self, seq: Any) -> list[tuple[int, int]]:
        size = self.block_slots
        return [
            (block * size, size) for table in seq.tables for block in table if block != NULL_BLOCK
        ]

    def check(self, holders: Iterable[Request]) -> None:
        pool = self.pool
        counted = np.zeros(pool.num_blocks, dtype=np.int64)
        for request in holders:
            for table, window in zip(request.tables, self.settings.groups.windows, strict=True):
                for block in table:
                    assert 0 <= block < pool.num_blocks, (
                        f"INV-2: request {request.row} holds {block}"
                    )
                    counted[block] += block != NULL_BLOCK or window is None
        references = np.array(pool.references)
        wrong = np.flatnonzero(counted != references)
        assert not wrong.size, (
            f"INV-3: block {wrong[0]} is in {counted[wrong[0]]} tables, its count is {references[wrong[0]]}"
        )
        assert not counted[NULL_BLOCK], f"INV-2: {counted[NULL_BLOCK]} tables hold the null block"
        is_free = np.zeros(pool.num_blocks, dtype=bool)
        is_free[np.array(list(pool.free), dtype=np.int64)] = True
        self._check_states(is_free, counted)
        pool.check_keys()

    def _check_states(self, is_free: npt.NDArray[Any], counted: npt.NDArray[Any]) -> None:
        is_held = counted > 0
        is_held[NULL_BLOCK] = True
        both = np.flatnonzero(is_free & is_held)
        assert not both.size, f"INV-2: block {both[0]} is free and held"
        num_free, num_held = int(is_free.sum()), int(is_held.sum())
        assert num_free + num_held == self.pool.num_blocks, (
            f"INV-1: {num_held} blocks held, the null block included, + {num_free} free or cached are not "
            f"{self.pool.num_blocks}"
        )


class VllmV1NoCaching(VllmV1):
    """The same without prefix caching: what is freed is forgotten."""

    reuses_prefixes: ClassVar[bool] = False
    reuses_answers: ClassVar[bool] = False
