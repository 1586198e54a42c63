"""Preemption, and the way back: recompute for single sequences, swapping for groups."""

from __future__ import annotations

from bisect import insort
from typing import Any

from ..link import Schedule
from .batch import GroupBatch, by_arrival
from .group import Group


class SwappingBatch(GroupBatch):
    """Takes memory of the latest, and brings swapped groups back first come first served.

    While blocks are copied, their source stays live and their target is reserved. Other groups go on meanwhile; a
    step that cannot do without the blocks begins when they have left.
    """

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.link = Schedule(self.policy.settings.link)
        self.swapped: list[Group] = []  # in order of arrival; whole on the host
        self.num_swaps_out = 0  # groups
        self.num_swapped_blocks = 0  # out and in
        self.num_host_full = 0  # groups that were recomputed because the host had no room
        self.waited_ns = 0  # for transfers, before steps

    def _preempt(self, group: Group) -> None:
        """Take its memory, one way or the other."""
        policy, ledger = self.policy, self.ledger
        self._stop(group)
        self.sequences.add(-len(group.branches), self._ready_ns)
        ledger.num_preemptions += 1
        self.requests.num_preemptions[group.row] += 1
        mode = policy.settings.preemption_mode
        if mode == "swap" or (mode == "auto" and len(group.branches) > 1):
            if policy.can_swap_out(group):
                self._swap_out(group)
                return
            self.num_host_full += 1
        policy.forget(group)
        num_others = policy.num_held(group.block_ids())
        ledger.leave(0, 0, 0, 0, self._ready_ns)
        ledger.commit(num_others * policy.block_slots - group.live_slots, self._ready_ns)
        self._account_own(-group.useful_slots, -group.num_blocks, -num_others)
        if len(group.branches) == 1:  # its tokens are one prompt from now on
            group.branches[0].blocks = []
            group.num_blocks = group.live_slots = 0
        self.queue.push_preempted(group)

    def _swap_out(self, group: Group) -> None:
        """What is computed stays live until it has been copied; the rest of its blocks will not be written."""
        policy, live, num_blocks = self.policy, group.live_slots, group.num_blocks
        self.num_swaps_out += 1
        self.num_swapped_blocks += num_blocks
        policy.swap_out(group, self.link.transfer(num_blocks, self._ready_ns))
        self.ledger.leave(0, group.useful_slots - live, 0, 0, self._ready_ns)
        self._account_host(live, num_blocks)

    def _swap_in(self) -> Group | None:
        """Bring back who fits. Returns the head if it was refused for memory."""
        policy = self.policy
        num_seqs = self._num_seqs
        num_seqs += sum(len(t.group.branches) for t in policy.transfers if not t.is_out)
        leaving = (t.group.arrival for t in policy.transfers if t.is_out)
        first_leaving = min(leaving, default=None)
        while self.swapped:
            group = self.swapped[0]
            num_seqs += len(group.branches)
            is_turn = first_leaving is None or group.arrival < first_leaving
            if num_seqs > self.limits.max_num_seqs or not is_turn:
                break
            # As many more blocks as a growth asks for, or it would be preempted again at once.
            if not policy.can_allocate(group.num_blocks + len(group.branches)):
                return group
            del self.swapped[0]
            self.num_swapped_blocks += group.num_blocks
            policy.swap_in(group, self.link.transfer(group.num_blocks, self._ready_ns))
            _, _, group.useful_slots = group.count(group.known - 1, policy.block_slots)
            self._count_tables(group.num_entries, group.num_blocks)
            self._account(group.useful_slots, group.num_blocks)
            self._end_waiting()
        return None

    def _arrive(self, end_ns: int) -> None:
        """The next transfer has ended: its source is free, its target holds what it held."""
        transfer = self.policy.transfers[0]
        group, live, num_blocks = transfer.group, transfer.group.live_slots, transfer.num_blocks
        now_ns = self._ready_ns = max(self._ready_ns, end_ns)
        self.policy.arrive(transfer)
        if transfer.is_out:
            num_others = self.policy.num_held(transfer.blocks)
            self.ledger.commit(num_others * self.policy.block_slots - live, now_ns)
            self._account_own(-live, -num_blocks, -num_others)
            self.host_ledger.commit(live, now_ns)
            insort(self.swapped, group, key=by_arrival)
        else:
            self.host_ledger.commit(-live, now_ns)
            self._account_host(-live, -num_blocks)
            self.ledger.commit(live, now_ns)
            self.policy.store(group, group.known - 1)
            self._enter(group)
            self._start(group, group.known - 1)

    def _await_blocks(self, num_blocks: int) -> bool:
        """Wait until so many blocks are free, if they are on their way out, or for the latest, if it is on its way in.

        False if there is nothing to wait for. The step begins when that has happened.
        """
        policy, free = self.policy, self.policy.device
        coming = policy.num_leaving_blocks()
        if coming and free.num_unheld_blocks + coming >= num_blocks:
            while free.num_unheld_blocks < num_blocks:
                self._arrive(policy.transfers[0].end_ns)
            return True
        latest = self.running[-1].arrival
        if any(not t.is_out and t.group.arrival > latest for t in policy.transfers):
            self._arrive(policy.transfers[0].end_ns)
            return True
        return False
