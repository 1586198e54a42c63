"""Prefix caching for groups: which blocks a prompt finds, and what its group leaves behind."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import ClassVar

from ..policies.policy import PolicySettings
from ..vllm_v1.content import Chains, spans_of_request
from .caching_pool import CachingBlockPool
from .group import Branch, Group, num_common_blocks
from .policy import VllmV0


class VllmV0PrefixCaching(VllmV0):
    """The same with prefix caching: full blocks are found again by content, and evicted when reused."""

    reuses_prefixes: ClassVar[bool] = True
    reuses_answers: ClassVar[bool] = True
    device: CachingBlockPool

    def __init__(self, settings: PolicySettings) -> None:
        super().__init__(settings)
        self._chains = Chains(self.block_slots)

    def _device_pool(self, num_blocks: int) -> CachingBlockPool:
        return CachingBlockPool("device", num_blocks)

    def _keys(self, group: Group, branch: Branch) -> list[int]:
        """Of the full blocks of a sequence, all that it will have; of a beam, those of its prompt."""
        if branch.keys is None:
            num_prompt_tokens = group.num_prompt_tokens
            # Whose tokens a beam will have, and which beam is the answer, nobody knows beforehand.
            num_tokens = num_prompt_tokens if group.is_beam else branch.end
            spans = spans_of_request(
                group.pieces, group.row, num_prompt_tokens, num_tokens, branch.branch
            )
            branch.keys = self._chains.numbers(spans)
        return branch.keys

    def find(self, group: Group) -> list[int]:
        # The last token that is known is computed in any case: it gives the next one.
        num_blocks = (group.known - 1) // self.block_slots
        keys = self._keys(group, group.branches[0])
        return self.device.find_chain(islice(keys, num_blocks))

    def store(self, group: Group, committed: int) -> None:
        begin, end = group.num_stored, committed // self.block_slots
        for branch in group.branches:
            keys = self._keys(group, branch)[begin:end]
            for block, key in zip(branch.blocks[begin:end], keys, strict=False):
                if not self.device.keys[block]:  # nor has it been stored with another table
                    self.device.store(block, key)
        group.num_stored = end

    def num_held(self, block_ids: Iterable[int]) -> int:
        refs = self.device.refs
        return sum(refs[block_id] > 0 for block_id in block_ids)

    def free(self, group: Group, branch: Branch) -> tuple[int, int]:
        blocks = branch.blocks
        num_freed, _ = super().free(group, branch)
        sibling = next((other for other in group.branches if other is not branch), None)
        if sibling is None:
            num_left = len(blocks)
        elif group.is_beam:  # all have those of the prompt, and others find no more
            num_left = num_freed
        else:  # what two samples have in common, all have
            num_left = len(blocks) - num_common_blocks(blocks, sibling.blocks)
        return num_left, num_left - num_freed

    def num_cached_slots(self) -> int:
        return self.device.num_cached_free * self.block_slots

    def cached_runs(self) -> list[tuple[int, int]]:
        return self._runs_of(self.device.unheld(is_cached=True))
