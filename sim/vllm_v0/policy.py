"""The block manager: block tables, sharing, copy-on-write, and swapping (Kwon et al. 2023, sections 4.2 to 4.5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import Any, ClassVar

from ..policies.policy import Policy, PolicySettings, merge_runs
from .blocks import BlockPool, Pool
from .group import Branch, Group, num_common_blocks


class Transfer:
    """Blocks of one group on their way between device and host. Their sources are pinned until they have arrived."""

    __slots__ = ("blocks", "end_ns", "group", "is_out", "num_blocks", "pinned_host_blocks", "row")

    def __init__(self, group: Group, is_out: bool, sources: list[int], end_ns: int) -> None:
        self.group = group
        self.row = group.row
        self.is_out = is_out
        self.num_blocks = len(sources)
        self.blocks = sources if is_out else []  # held on the device
        self.pinned_host_blocks = [] if is_out else sources
        self.end_ns = end_ns


class VllmV0(Policy):
    """The paper's vLLM: blocks that samples and beams share; groups are swapped, single sequences recomputed."""

    engine: ClassVar[str] = "kvtwin.sim.vllm_v0.engine:GroupEngine"
    scheduling: ClassVar[str] = "prompts or decodes, a request's sequences together, swapped first"
    serves_branches: ClassVar[bool] = True
    default_watermark: ClassVar[float] = 0.01
    options: ClassVar[frozenset[str]] = frozenset(
        {"watermark", "preemption_mode", "swap_space", "swap_copy_ns"}
    )

    def __init__(self, settings: PolicySettings) -> None:
        super().__init__(settings)
        self.settings = settings
        self.block_slots = settings.block_size
        num_blocks = self.num_slots // self.block_slots
        assert num_blocks * self.block_slots == self.num_slots, (
            f"a pool of {self.num_slots} slots is no whole number of {self.block_slots}-token blocks"
        )
        self.device: Pool = self._device_pool(num_blocks)
        self.host = BlockPool("host", settings.num_host_slots // self.block_slots)
        self.watermark_blocks = int(settings.watermark * num_blocks)
        self.on_host: dict[int, Group] = {}  # by row: whose tables are there
        self.transfers: list[Transfer] = []  # under way, by their end

    def _device_pool(self, num_blocks: int) -> Pool:
        return BlockPool("device", num_blocks)

    def largest_need(self, num_prompt_tokens: int, num_output_tokens: int, max_tokens: int) -> int:
        return self.group_need(num_prompt_tokens, (num_output_tokens,))

    @property
    def largest_grant(self) -> int:
        return (self.device.num_blocks - self.watermark_blocks) * self.block_slots

    def group_need(self, num_prompt_tokens: int, num_output_tokens: Seq[int]) -> int:
        """Slots for which a request of several sequences asks at its largest moment, nothing but its prompt shared.

        A growth wants a free block for each sequence, needed or not, and so does a return to the pool.
        """
        size = self.block_slots
        ends = sorted(num_prompt_tokens + num - 1 for num in num_output_tokens)
        shared = num_prompt_tokens // size
        most = num_prompt_blocks = -(-num_prompt_tokens // size)
        for number, end in enumerate(ends):
            if end > num_prompt_tokens:
                num_seqs = len(ends) - number
                held = shared + num_seqs * (-(-(end - 1) // size) - shared)
                if (
                    end - 1 == num_prompt_tokens
                ):  # no sequence has a copy of the prompt's last block yet
                    held = num_prompt_blocks
                most = max(most, held + num_seqs)
        return most * size

    def can_allocate(self, num_blocks: int) -> bool:
        """Whether so many blocks can be taken by an admission, which leaves the watermark free."""
        return num_blocks + self.watermark_blocks <= self.device.num_unheld_blocks

    def can_append(self, group: Group) -> bool:
        """Whether a step may add a token to each branch: a free block for each is asked for, needed or not."""
        return len(group.branches) <= self.device.num_unheld_blocks

    def find(self, group: Group) -> list[int]:
        """Blocks that hold the beginning of the `known` tokens of a group that has none, as `store` was told."""
        return []

    def store(self, group: Group, committed: int) -> None:
        """The first `committed` tokens of every branch have been computed: others may `find` what is full."""

    def num_held(self, block_ids: Iterable[int]) -> int:
        """How many of these blocks, which one request has found or given up, another one holds."""
        return 0

    def allocate(self, group: Group, found: Seq[int] = ()) -> int:
        """Blocks for the `known` tokens of a group that has none, those `found` first, shared by its branches.

        Returns how many.
        """
        first, *others = group.branches
        group.num_stored = len(found)
        self.device.share(found)
        granted = self.device.take(-(-group.known // self.block_slots) - len(found))
        first.blocks = [*found, *granted]
        self._log_each("share", first, found)
        self._log_each("grant", first, granted)
        for branch in others:
            branch.blocks = first.blocks.copy()
            self.device.share(branch.blocks)
            self._log_each("share", branch, branch.blocks)
        return len(first.blocks)

    def restore(self, group: Group) -> int:
        """New blocks in place of those that the tables of a group still name after `forget`, shared as they were."""
        parts = group.distinct_parts()
        group.num_stored = 0
        new_ids: dict[int, int] = {}
        for branch, place in parts:
            block_ids = self.device.take(len(branch.blocks) - place)
            new_ids.update(zip(branch.blocks[place:], block_ids, strict=True))
        firsts = dict(parts)
        for branch in group.branches:
            place = firsts.get(branch, len(branch.blocks))
            branch.blocks = [new_ids[block_id] for block_id in branch.blocks]
            shared, own = branch.blocks[:place], branch.blocks[place:]
            self.device.share(shared)
            self._log_each("share", branch, shared)
            self._log_each("grant", branch, own)
        return len(new_ids)

    def append(self, group: Group, committed: int) -> tuple[int, int]:
        """Make room for position `committed` of every branch. Returns the numbers of new blocks and of copies.

        A full table gets a block. A last block that other tables hold, too, is copied; who is left with it alone
        writes in place.
        """
        place, device, num_new, num_copies = committed // self.block_slots, self.device, 0, 0
        for branch in group.branches:
            if place == len(branch.blocks):
                branch.blocks += device.take(1)
                num_new += 1
                self._log_each("extend", branch, branch.blocks[-1:])
            elif device.refs[source := branch.blocks[place]] > 1:
                (branch.blocks[place],) = device.take(1)
                device.drop((source,))
                num_copies += 1
                if self.log is not None:
                    self.log.add("copy", branch.row, branch.blocks[place], 1, branch.branch, source)
        return num_new, num_copies

    def fork(self, branch: Branch, parent: Branch) -> int:
        """`branch` gives up its table for that of `parent`. Returns how many blocks became free: its last ones."""
        old, new = branch.blocks, parent.blocks
        num_common = num_common_blocks(old, new)
        self._log_each("free", branch, old[num_common:])
        num_freed = self.device.drop(old[num_common:])
        self._log_each("share", branch, new[num_common:])
        self.device.share(new[num_common:])
        branch.blocks = new.copy()
        return num_freed

    def free(self, group: Group, branch: Branch) -> tuple[int, int]:
        """A branch gives up its table. Returns how many blocks its group has lost, the last ones of the table, and how
        many of those another one holds.
        """
        self._log_each("free", branch, branch.blocks)
        num_freed = self.device.drop(branch.blocks)
        branch.blocks = []
        return num_freed, 0

    def forget(self, group: Group) -> None:
        """A group gives up its blocks. Its tables keep naming them, to say what was shared, until `restore`."""
        for branch in group.branches:
            self._log_each("free", branch, branch.blocks)
            self.device.drop(branch.blocks)

    def can_swap_out(self, group: Group) -> bool:
        """Whether the host has room for the blocks of a group."""
        return group.num_blocks <= self.host.num_free_blocks

    def swap_out(self, group: Group, end_ns: int) -> Transfer:
        """Tables name blocks of the host from now on; those of the device are pinned until the copies have ended."""
        sources = self._relocate(group, self.device, self.host, "swap_out")
        self.on_host[group.row] = group
        return self._send(Transfer(group, True, sources, end_ns))

    def swap_in(self, group: Group, end_ns: int) -> Transfer:
        """The other way round."""
        sources = self._relocate(group, self.host, self.device, "swap_in")
        del self.on_host[group.row]
        group.num_stored = 0
        return self._send(Transfer(group, False, sources, end_ns))

    def _relocate(self, group: Group, source: Pool, target: Pool, action: str) -> list[int]:
        """Give every table its blocks in `target`, shared as they were. Returns those in `source`, pinned."""
        new_ids: dict[int, int] = {}
        for branch, place in group.distinct_parts():
            old_ids = branch.blocks[place:]
            for old_id, new_id in zip(old_ids, target.take(len(old_ids)), strict=True):
                new_ids[old_id] = new_id
                if self.log is not None:
                    self.log.add(action, branch.row, new_id, 1, branch.branch, old_id)
        source.share(new_ids)
        for branch in group.branches:
            source.drop(branch.blocks)
            branch.blocks = [new_ids[block_id] for block_id in branch.blocks]
            target.share(branch.blocks)
        target.drop(list(new_ids.values()))  # `take` had counted each once
        return list(new_ids)

    def _send(self, transfer: Transfer) -> Transfer:
        self.transfers.append(transfer)  # the link carries them in this order
        return transfer

    def num_leaving_blocks(self) -> int:
        """Blocks that nobody will hold when all transfers under way have ended."""
        pins = Counter(block_id for transfer in self.transfers for block_id in transfer.blocks)
        refs = self.device.refs
        return sum(refs[block_id] == num_pins for block_id, num_pins in pins.items())

    def arrive(self, transfer: Transfer) -> None:
        """The first transfer under way has ended: what it pinned is free."""
        assert self.transfers[0] is transfer, f"transfers end in order, {transfer.row} is not next"
        del self.transfers[0]
        self.device.drop(transfer.blocks)
        self.host.drop(transfer.pinned_host_blocks)
        if self.log is not None:
            for block_id in transfer.blocks:
                self.log.add("vacate", transfer.row, block_id, 1)
            for block_id in transfer.pinned_host_blocks:
                self.log.add("vacate_host", transfer.row, block_id, 1)

    def _log_each(self, action: str, branch: Branch, block_ids: Seq[int]) -> None:
        if self.log is not None:
            for block_id in block_ids:
                self.log.add(action, branch.row, block_id, 1, branch.branch)

    def num_free_slots(self) -> int:
        return self.device.num_free_blocks * self.block_slots

    def unusable_slots(self) -> int:
        """Free slots that the watermark keeps from the head of the queue."""
        return min(self.device.num_free_blocks, self.watermark_blocks) * self.block_slots

    def free_runs(self) -> list[tuple[int, int]]:
        return self._runs_of(self.device.free_block_ids())

    def _runs_of(self, block_ids: Iterable[int]) -> list[tuple[int, int]]:
        size = self.block_slots
        return merge_runs((block_id * size, size) for block_id in block_ids)

    def largest_free_run(self) -> int:
        return self.device.largest_free_run() * self.block_slots

    def runs(self, seq: Any) -> list[tuple[int, int]]:
        return [(block * self.block_slots, self.block_slots) for block in seq.blocks]

    def check(self, holders: Iterable[Any]) -> None:
        """INV-1 to INV-3 of both pools, from the tables of `holders` (branches, transfers) and of who is swapped."""
        self.device.check(
            (f"request {seq.row} ({getattr(seq, 'branch', 'swap')})", seq.blocks) for seq in holders
        )
        tables = [
            (f"request {branch.row} ({branch.branch})", branch.blocks)
            for group in self.on_host.values()
            for branch in group.branches
        ]
        pins = [(f"request {t.row} (swap)", t.pinned_host_blocks) for t in self.transfers]
        self.host.check([*tables, *pins])
