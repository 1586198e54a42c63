"""What the next step does: prompts of new groups, else a token for every running branch."""

from __future__ import annotations

from typing import Any

from ..ledger import MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS, MEMORY
from ..plan import Plan
from ..sequence import NEVER
from .group import Branch, Group
from .policy import Transfer
from .swapping import SwappingBatch


class GroupScheduler(SwappingBatch):
    """The planning half of the engine: first come first served, by groups, swapped ones before all others."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._most_branches = max(map(len, self.requests.branch_outputs))
        self.refused_row: int | None = None  # the head, if it was refused for memory
        self._limit = (
            MAX_NUM_SEQS  # that stopped admissions, if the head was not refused for memory
        )
        self._prompts: list[tuple[Group, int]] = []  # of the planned step, if it has any: tokens

    def plan(self, now_ns: int) -> Plan | None:
        """The next step, with its memory; None if nothing runs and nobody waits."""
        num_waiting, policy = self.queue.advance(now_ns), self.policy
        if not (num_waiting or self.running or self.swapped or policy.transfers):
            return None
        if self._log is not None:
            self._log.step = self.step
        self._ready_ns = now_ns
        self._prompts = []
        num_preemptions = self.ledger.num_preemptions
        self._set_unheld(0, now_ns)
        while policy.transfers and policy.transfers[0].end_ns <= now_ns:
            self._arrive(now_ns)
        while not self._admit() and not self._decode():
            assert policy.transfers, (
                f"INV-5: nothing runs at {now_ns} ns, {num_waiting} wait, and none is admitted to {policy.num_slots} "
                f"slots, {policy.num_free_slots()} of them free and {policy.num_cached_slots()} cached; "
                f"refused for memory: {self.refused_row}"
            )
            self._arrive(policy.transfers[0].end_ns)
        self.waited_ns += self._ready_ns - now_ns
        external_slots = 0 if self.refused_row is None else policy.unusable_slots()
        self._set_unheld(external_slots, self._ready_ns)
        self.ledger.note_running()
        self._note_wait(preempted=self.ledger.num_preemptions > num_preemptions)
        if self.paranoid:
            self.check()
        return self._describe(now_ns)

    def _admit(self) -> bool:
        """The next groups in line, unless a preempted one waits elsewhere. True if there are any."""
        policy, queue = self.policy, self.queue
        self.refused_row = None
        if self.swapped or policy.transfers:
            return False
        budget, num_seqs = self.limits.max_num_batched_tokens, self._num_seqs
        while (group := queue.head()) is not None:
            again = group.num_blocks > 0  # several sequences, to be computed as they were
            found = [] if again else policy.find(group)
            num_hit_tokens = len(found) * policy.block_slots
            num_tokens = group.live_slots if again else group.known - num_hit_tokens
            num_seqs += len(group.branches)
            # A prompt that is longer than the budget is computed alone.
            is_full = num_seqs > self.limits.max_num_seqs
            if (self._prompts and num_tokens > budget) or is_full:
                self._limit = MAX_NUM_SEQS if is_full else MAX_NUM_BATCHED_TOKENS
                break
            num_blocks = -(-group.known // policy.block_slots)
            if again:
                num_blocks = group.num_blocks + len(group.branches)
            if not policy.can_allocate(num_blocks):
                self.refused_row = group.row
                break
            queue.pop(self._ready_ns)
            budget -= num_tokens
            num_joined = policy.num_held(found)
            if again:
                policy.restore(group)
            else:
                group.num_blocks = policy.allocate(group, found)
            if group.last_token_ns == NEVER:
                self.requests.num_hit_tokens[group.row] = num_hit_tokens
            else:
                lost = group.live_slots if again else group.known - 1
                self.ledger.recomputed_tokens += lost - num_hit_tokens
            group.num_hit_tokens = num_hit_tokens
            _, _, group.useful_slots = group.count(0, policy.block_slots)
            self._prompts.append((group, num_tokens))
            self._count_tables(group.num_entries, group.num_blocks)
            # What is found is full, and what others hold of it counts as theirs.
            self.ledger.commit(num_hit_tokens - num_joined * policy.block_slots, self._ready_ns)
            self._account_own(group.useful_slots, group.num_blocks, num_joined)
            self._enter(group)
        if self._prompts:
            self._end_waiting()
        return bool(self._prompts)

    def _note_wait(self, *, preempted: bool) -> None:
        """What the next in line waits for. Who is on the host, and who waits for a swap to end, waits for memory."""
        policy, waits_for = self.policy, None
        if policy.on_host or self.queue.head() is not None:
            refused = preempted or policy.transfers or self.refused_row is not None
            waits_for = MEMORY if policy.on_host or refused else self._limit
        if waits_for is not self.ledger.waits_for:
            self.ledger.wait_for(waits_for, self._ready_ns)

    def _decode(self) -> bool:
        """A token for each running branch, with its memory. False if nobody runs."""
        preempted = bool(self.running) and self._append()
        refused = None if preempted else self._swap_in()
        if refused is not None:
            self.refused_row = refused.row
        return bool(self.running)

    def _append(self) -> bool:
        """Room for a token of every running branch, in order of arrival. True if that took a preemption."""
        due, policy = self._pop_due(), self.policy
        num_asked = sum(len(group.branches) for group in due) + self._most_branches
        if num_asked <= policy.device.num_unheld_blocks:
            for group in due:
                self._extend(group)
            return False
        # Near the end of the pool every group is asked, due or not.
        is_due, preempted, number = set(due), False, 0
        while number < len(self.running):
            group = self.running[number]
            if policy.can_append(group):
                if group in is_due:
                    is_due.remove(group)
                    self._extend(group)
                number += 1
            elif self._await_blocks(len(group.branches)):
                # Who has come back in the meantime is behind all others, so nobody is asked twice.
                is_due.update(self._pop_due())
                assert self.running[number] is group, f"request {group.row} was overtaken"
            else:
                preempted = True
                self._preempt(self.running[-1])
        return preempted

    def _describe(self, now_ns: int) -> Plan:
        plan = Plan(now_ns, 0, 0)
        plan.ready_ns = self._ready_ns
        for group, _ in self._prompts:
            for _, first, num_tokens in self._parts(group):
                plan.num_prefill_tokens += num_tokens
                plan.prefill_pairs += num_tokens * first + num_tokens * (num_tokens + 1) // 2
                plan.prefill_context_slots += first + num_tokens
        if not self._prompts:
            plan.num_decode_tokens = self._num_seqs
            plan.decode_context_slots = self._context + self._num_seqs
        plan.moved_slots = self._num_copies * self.policy.block_slots
        return plan

    def _parts(self, group: Group) -> list[tuple[Branch, int, int]]:
        """(branch, first position, number of tokens) of what a group that was just admitted computes.

        One prompt, from the first token on that was not found; or, of several sequences, every token again that had
        been committed, shared ones once.
        """
        if group.live_slots == 0:
            first = group.num_hit_tokens
            return [(group.branches[0], first, group.known - first)]
        size, committed = self.policy.block_slots, group.known - 1
        parts = [(branch, place * size) for branch, place in group.distinct_parts()]
        return [(branch, first, committed - first) for branch, first in parts]

    def holders(self) -> list[Branch | Transfer]:
        """Branches with a table on the device, and transfers whose sources are there still."""
        branches = [branch for group in self._groups() for branch in group.branches]
        return [*branches, *(transfer for transfer in self.policy.transfers if transfer.is_out)]

    def _groups(self) -> list[Group]:
        arriving = [transfer.group for transfer in self.policy.transfers if not transfer.is_out]
        return [*self.running, *(group for group, _ in self._prompts), *arriving]

    def check(self) -> None:
        """Recount the totals and the pools from the tables."""
        policy, size, holders = self.policy, self.policy.block_slots, self.holders()
        policy.check(holders)
        leaving = [transfer for transfer in policy.transfers if transfer.is_out]
        live = useful = sum(transfer.group.live_slots for transfer in leaving)
        num_blocks = sum(transfer.num_blocks for transfer in leaving)
        for group in self._groups():
            is_running = group.admission != NEVER
            committed = group.num_hit_tokens
            if is_running:
                committed = group.offset + self.decode_steps
            counted = group.count(committed, size)
            assert counted[::2] == (group.num_blocks, group.useful_slots), (
                f"INV-1: request {group.row} has {counted} blocks, live and useful slots, and was said to have "
                f"{group.num_blocks} and {group.useful_slots}"
            )
            num_blocks, live, useful = (
                num_blocks + counted[0],
                live + counted[1],
                useful + counted[2],
            )
            for branch in group.branches if is_running else ():
                assert committed <= len(branch.blocks) * size, (
                    f"INV-7: request {group.row} has committed {committed} tokens to {len(branch.blocks)} blocks of "
                    f"{size}: some that it reads it has not written"
                )
        num_entries = sum(len(b.blocks) for group in self._groups() for b in group.branches)
        tables = (num_entries, num_blocks - sum(transfer.num_blocks for transfer in leaving))
        # Blocks of several requests are full, and count once.
        holdings = {(holder.row, block) for holder in holders for block in holder.blocks}
        num_again = len(holdings) - len({block for _, block in holdings})
        live, useful = live - num_again * size, useful - num_again * size
        num_blocks -= num_again
        # What a step copies is live when it commits.
        totals = (self.ledger.live + self._copied_slots, self.ledger.useful, self.ledger.granted)
        assert (live, useful, num_blocks * size) == totals, (
            f"INV-1: {live} live, {useful} useful, {num_blocks * size} granted slots, the totals say {totals}"
        )
        host, held_slots = policy.host, self.host_ledger.granted
        assert held_slots + host.num_free_blocks * size == host.num_blocks * size, (
            f"INV-1: {held_slots} slots of the host are held, {host.num_free_blocks} of {host.num_blocks} blocks free"
        )
        assert tables == (self.entries.value, self.blocks.value), (
            f"{tables} entries and blocks of tables, the totals say {self.entries.value} and {self.blocks.value}"
        )
