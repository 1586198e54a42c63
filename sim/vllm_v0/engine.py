"""The engine of groups: the scheduler's plans, applied as they are carried out."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

from ..engine_contract import Work
from ..plan import Plan
from ..recorder import Sample
from ..sequence import NEVER
from ..summary import parts_of
from .beams import parents
from .group import Branch, Group
from .scheduler import GroupScheduler

HOST_PARTS = ("live", "reserved", "internal", "free")


class GroupEngine(GroupScheduler):
    """`plan` decides what the next step does, `commit` applies what it did."""

    moved_slots = 0

    def work(self, plan: Plan) -> list[Work]:
        """What the planned step computes: prompts, or a token of every running branch."""
        if self._prompts:
            return [Work(*part) for group, _ in self._prompts for part in self._parts(group)]
        return [
            Work(branch, group.offset + self.decode_steps, 1)
            for group in self.running
            for branch in group.branches
        ]

    def parts(self) -> dict[str, int]:
        """Slots of each part as the recorder counts them from the latest plan to its commit."""
        return parts_of(self.ledger.per_ns())

    def commit(self, plan: Plan, ends_ns: Seq[int]) -> None:
        """The planned step has ended."""
        (end_ns,) = ends_ns
        assert plan.ready_ns <= end_ns, f"INV-4: ready at {plan.ready_ns} ns, ended at {end_ns} ns"
        self._ready_ns = end_ns
        self.step += 1
        self.ledger.num_prefill_tokens += plan.num_prefill_tokens
        self.ledger.num_decode_tokens += plan.num_decode_tokens
        self.moved_slots += plan.moved_slots
        if end_ns >= self.recorder.row_end_ns:
            self.recorder.close_row(self.ledger.totals(end_ns, self.step), self._sample(end_ns))
        if self._prompts:
            prompts, self._prompts = self._prompts, []
            for group, num_tokens in prompts:
                self._end_prompt(group, num_tokens, end_ns)
        else:
            self._end_decode(end_ns)
        self._num_copies = self._copied_slots = 0
        if self.paranoid:
            self.check()

    def _end_prompt(self, group: Group, num_tokens: int, end_ns: int) -> None:
        self.ledger.commit(num_tokens, end_ns)
        if group.live_slots:  # computed again, and nothing but that
            self.policy.store(group, group.known - 1)
            self._start(group, group.known - 1)
            return
        group.live_slots = group.known
        self.policy.store(group, group.known)
        if group.last_token_ns == NEVER:
            self.requests.first_token_ns[group.row] = end_ns
        else:
            self.recorder.gaps.add_one(end_ns - group.last_token_ns, len(group.branches))
        group.last_token_ns = end_ns
        ended = [branch for branch in group.branches if branch.end == group.known]
        for branch in ended:
            self._end_branch(group, branch, group.known)
        if group.branches:
            self._start(group, group.known)

    def _end_decode(self, end_ns: int) -> None:
        """Every running branch has a token more; some their last, and beams others' past."""
        num_old, gaps = self._num_seqs, self.recorder.gaps
        for group in self._newcomers:
            gaps.add_one(end_ns - group.last_token_ns, len(group.branches))
            num_old -= len(group.branches)
        self._newcomers.clear()
        if num_old:
            gaps.add_one(end_ns - self._decoded_ns, num_old)
        self._decoded_ns = end_ns
        self.ledger.commit(self._num_seqs + self._copied_slots, end_ns)
        self._context += self._num_seqs
        ends = self._ends.pop(self.decode_steps, ())
        self.decode_steps += 1
        if self.policy.reuses_prefixes:
            for group in self._now_due():  # their tables are full
                self.policy.store(group, group.offset + self.decode_steps)
        ended = [
            (group, branch) for group, admission, branch in ends if group.admission == admission
        ]
        for group, branch in sorted(ended, key=lambda end: (end[0].arrival, end[1].branch)):
            self._sync(group)
            self._num_seqs -= 1
            self._context -= branch.end
            self._end_branch(group, branch, branch.end)
            if not group.branches:
                self.running.remove(group)
        if self.requests.beam_width > 1:
            for group in self.running:
                self._end_beam_step(group)

    def _end_branch(self, group: Group, branch: Branch, committed: int) -> None:
        """The last token of a branch is out, perhaps that of its group."""
        num_blocks = len(branch.blocks)
        self._count_tables(-num_blocks, 0)
        self.sequences.add(-1, self._ready_ns)
        num_left, num_others = self.policy.free(group, branch)
        self._release(group, num_blocks, num_left, num_others, branch.end, committed)
        group.branches.remove(branch)
        if not group.branches:
            group.admission = NEVER
            self.ledger.leave(0, 0, 0, 0, self._ready_ns)
            self.requests.finished_ns[group.row] = self._ready_ns
            self.queue.finish(group.row, self._ready_ns)

    def _end_beam_step(self, group: Group) -> None:
        """The best candidates go on from some of the beams; those without any are dropped."""
        committed = group.offset + self.decode_steps
        num_generated = committed + 1 - group.num_prompt_tokens
        beams = group.branches
        origins = parents(self.policy.settings.seed, group.row, num_generated, len(beams))
        self._sync(group)
        for number, origin in enumerate(origins):
            if origin != number:
                beam = beams[number]
                num_freed = self.policy.fork(beam, beams[origin])
                self._release(group, len(beam.blocks), num_freed, 0, beam.end, committed)

    def _release(
        self,
        group: Group,
        num_blocks: int,
        num_left: int,
        num_others: int,
        end: int,
        committed: int,
    ) -> None:
        """A group has lost the last `num_left` blocks of a table of `num_blocks`; others have `num_others` of them."""
        size = self.policy.block_slots
        stop, first = num_blocks * size, (num_blocks - num_left) * size
        live = min(stop, committed) - min(first, committed)
        useful = min(stop, end) - min(first, end)
        group.live_slots -= live
        group.useful_slots -= useful
        group.num_blocks -= num_left
        self._count_tables(0, -num_left)
        self.ledger.commit(num_others * size - live, self._ready_ns)
        self._account_own(-useful, -num_left, -num_others)

    @property
    def recomputed_tokens(self) -> int:
        """Committed tokens lost to preemptions by recompute and not found again, shared ones once."""
        return self.ledger.recomputed_tokens

    @property
    def most_running(self) -> int:
        """The most requests that ran in any step."""
        return self.ledger.most_running

    @property
    def least_free_slots(self) -> int:
        """The fewest slots that nobody held in any step, between its plan and its commit."""
        return self.ledger.least_free

    def idle(self, start_ns: int, end_ns: int) -> None:
        """Nothing ran and nobody waited from start to end."""
        self.ledger.idle_ns += end_ns - start_ns
        self._set_unheld(0, start_ns)
        if end_ns >= self.recorder.row_end_ns:
            self.recorder.close_row(self.ledger.totals(end_ns, self.step), self._sample(end_ns))

    def finish(self, end_ns: int) -> None:
        """The run is over. INV-8: both pools are free or cached, and every request has ended (INV-5)."""
        for pool in (self.policy.device, self.policy.host):
            assert pool.num_unheld_blocks == pool.num_blocks, (
                f"INV-8: {pool.num_unheld_blocks} of {pool.num_blocks} {pool.name} blocks are free or cached after the "
                "last request"
            )
        left = [
            (ledger.live, ledger.useful, ledger.asked, ledger.granted, ledger.running)
            for ledger in (self.ledger, self.host_ledger)
        ]
        assert not any(map(any, left)), f"INV-8: totals {left} are left after the last request"
        batch = (self._num_seqs, self._context)
        assert batch == (0, 0), f"INV-8: {batch} sequences and tokens are left in the batch"
        unfinished = [row for row in self.requests.accepted if self.requests.finished_ns[row] < 0]
        assert not unfinished, f"INV-5: requests {unfinished[:5]} of {len(unfinished)} never ended"
        self.recorder.finish(self.ledger.totals(end_ns, self.step), self._sample(end_ns))

    def details(self) -> dict[str, Any]:
        """Sharing in the loaded window, and swapping over the whole run."""
        policy, end_ns = self.policy, self.recorder.whole[0]
        host_slots = policy.host.num_blocks * policy.block_slots
        host_parts = parts_of(self.host_ledger.totals(end_ns, self.step))
        whole = host_slots * end_ns
        assert sum(host_parts.values()) == whole, (
            f"INV-1: parts {host_parts} of the host add up to {sum(host_parts.values())}, its pool is {whole}"
        )
        # As the recorder has it: if nobody ever waited, the window is the whole run.
        loaded = self.loaded if self.loaded[-1] else self._integrals(end_ns)
        entries, blocks, sequences, loaded_ns = loaded
        return {
            "sharing": {
                "mean_running_sequences": sequences / loaded_ns if loaded_ns else 0.0,
                "saved_share_of_blocks": 1 - blocks / entries if entries else 0.0,
                "num_copied_blocks": self.moved_slots // policy.block_slots,
            },
            "swapping": {
                "num_groups_out": self.num_swaps_out,
                "num_blocks_out_and_in": self.num_swapped_blocks,
                "num_bytes_out_and_in": self.num_swapped_blocks * policy.settings.link.block_bytes,
                "num_recomputed_for_want_of_host": self.num_host_full,
                "link_busy_share": self.link.busy_ns / end_ns if end_ns else 0.0,
                "waited_ns": self.waited_ns,
                "host_slots": host_slots,
                "host_peak_used_share": 1 - self.host_ledger.least_free / host_slots
                if host_slots
                else 0.0,
                "host_shares": {
                    name: value / whole if whole else float(name == "free")
                    for name, value in host_parts.items()
                    if name in HOST_PARTS
                },
            },
        }

    def _sample(self, end_ns: int) -> Sample:
        pieces: tuple[tuple[int, int, int], ...] = ()
        if self.recorder.snapshots:
            size = self.policy.block_slots
            held = {block: holder.row for holder in self.holders() for block in holder.blocks}
            pieces = tuple((block * size, size, row) for block, row in held.items())
        num_waiting = self.queue.advance(end_ns) + len(self.policy.on_host)
        policy = self.policy
        return Sample(num_waiting, policy.largest_free_run(), policy.num_free_slots(), pieces)
