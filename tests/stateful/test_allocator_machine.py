"""Random actions on tiny pools, against a model that knows slots, owners and tokens."""

from typing import Any

import pytest
from allocators import (
    ALLOCATORS,
    Memory,
    build,
    cached_slots,
    can_run,
    free_slots,
    num_unheld_slots,
    sequence,
    slots_by_position,
    slots_of,
)
from example_counts import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from random_cases import prompt_pieces

from kvtwin.sim import Sequence
from kvtwin.sim.prompts import Pieces, first_pieces

# Prompt and output in sixteenths of the most; tokens lost to a preemption; parts of the prompt; its first tokens.
REQUESTS = st.tuples(
    st.integers(0, 9), st.integers(0, 16), st.integers(0, 3), st.integers(1, 3), prompt_pieces(9)
)


class Log(list[tuple[str, int, int, int]]):
    """Decisions in order: (action, row, first, num)."""

    def add(self, action: str, row: int, first: int, num: int) -> None:
        self.append((action, row, first, num))


class PoolMachine(RuleBasedStateMachine):
    """Plans steps as the engine does, and carries them out.

    `owners` is what the allocator has answered, action by action. `memory` holds what steps write
    and what the moves of the decision log copy, in their order.
    """

    policy: str

    @initialize(
        num_blocks=st.integers(4, 16),
        block_size=st.integers(1, 4),
        length_share=st.sampled_from([2, 3, 1]),
        growth_tokens=st.integers(1, 4),
        fit=st.sampled_from(["first", "best"]),
        compaction=st.booleans(),
        max_num_seqs=st.integers(1, 4),
        admission=st.sampled_from(["step", "full"]),
        watermark=st.sampled_from([0.0, 0.0, 0.25]),
    )
    def start(self, num_blocks: int, block_size: int, length_share: int, **fields: Any) -> None:
        self.num_slots = num_blocks * block_size
        self.max_model_len = max(2, self.num_slots // length_share)
        self.allocator = build(
            self.policy,
            self.num_slots,
            block_size=block_size,
            max_model_len=self.max_model_len,
            **fields,
        )
        self.log = self.allocator.log = Log()
        self.holders: list[Sequence] = []  # in order of admission
        self.prefilled: dict[int, int] = {}  # row -> tokens of the prompt that have been given room
        self.committed: dict[int, int] = {}
        self.room: dict[int, int] = {}
        self.num_rows = 0
        self.num_checked = 0  # entries of the log that the owners follow already
        self.num_carried_out = 0  # entries of the log that the memory follows already
        self.owners: dict[int, int] = {}
        self.prompts: dict[int, Pieces] = {}
        self.memory = Memory(self.num_slots, self.prompts)

    def decoding(self, seq: Sequence) -> bool:
        return self.committed[seq.row] >= seq.known

    def follow(self) -> None:
        """Take over what the allocator says of whom the log names; nobody else may have changed."""
        changed = {row for _, row, _, _ in self.log[self.num_checked :]}
        self.num_checked = len(self.log)
        by_row = {seq.row: seq for seq in self.holders}
        self.owners = {slot: row for slot, row in self.owners.items() if row not in changed}
        for row in changed:
            for slot in slots_of(self.allocator, by_row[row]) if row in by_row else ():
                assert slot not in self.owners, (
                    f"INV-2: {slot} was {self.owners[slot]}'s, is {row}'s"
                )
                self.owners[slot] = row

    @rule(requests=st.lists(REQUESTS, min_size=1, max_size=4))
    def admit(self, requests: list[tuple[int, int, int, int, Pieces]]) -> None:
        for request in requests:
            self.admit_one(*request)

    def admit_one(self, prompt: int, output: int, lost: int, parts: int, pieces: Pieces) -> None:
        """A request, fresh or preempted after `lost` tokens, whose prompt is computed in parts."""
        num_prompt = 1 + (self.max_model_len - 2) * prompt // 16
        num_output = 1 + (self.max_model_len - num_prompt - 1) * output // 16
        seq = sequence(self.num_rows, num_prompt, num_output, first_pieces(pieces, num_prompt))
        if not can_run(self.allocator, seq):
            return
        if any(not self.decoding(other) for other in self.holders):
            parts = 1  # only one prompt is in progress at any time
        seq.known += min(lost, num_output - 1)
        hit = self.allocator.num_hit_tokens(seq)
        assert 0 <= hit < seq.known
        num_tokens = seq.known
        if self.allocator.chunked_prefill:
            num_tokens = hit - (hit - seq.known) // parts
        fits = self.allocator.fits(seq, num_tokens, bool(self.holders))
        num_unheld = num_unheld_slots(self.allocator)
        assert self.allocator.admit(seq, num_tokens, bool(self.holders)) == fits
        if not fits:
            assert num_unheld_slots(self.allocator) == num_unheld
            return
        assert num_unheld_slots(self.allocator) == num_unheld - seq.granted_slots
        assert seq.room >= num_tokens
        self.num_rows += 1
        self.holders.append(seq)
        self.prompts[seq.row] = seq.pieces
        self.prefilled[seq.row], self.committed[seq.row] = num_tokens, hit
        self.room[seq.row] = seq.room
        self.follow()

    @rule(num_tokens=st.integers(1, 6))
    def extend(self, num_tokens: int) -> None:
        """The prompt in progress goes on; without room it is preempted."""
        for seq in self.holders:
            before = self.committed[seq.row]
            if before < seq.known and self.prefilled[seq.row] == before:
                wanted = min(before + num_tokens, seq.known)
                if self.allocator.extend(seq, wanted):
                    self.prefilled[seq.row], self.room[seq.row] = wanted, seq.room
                    self.follow()
                else:
                    self.drop(seq)
                return

    @rule(preempt=st.booleans())
    def grow(self, preempt: bool) -> None:
        """All who have used up their room. Refused: the latest is preempted, or nothing is done."""
        due = [
            seq
            for seq in self.holders
            if self.decoding(seq) and self.committed[seq.row] == self.room[seq.row] < seq.end
        ]
        while due:
            held = {seq.row: len(slots_by_position(self.allocator, seq)) for seq in due}
            num_served = self.allocator.grow(due)
            for number, seq in enumerate(due):
                grown = len(slots_by_position(self.allocator, seq)) - held[seq.row]
                assert grown == self.allocator.growth_slots * (number < num_served)
            for seq in due[:num_served]:
                self.room[seq.row] += self.allocator.growth_tokens or 0
            self.follow()
            due = due[num_served:]
            if not due or not preempt:
                return
            victim = self.holders[-1]
            self.drop(victim)
            due = [seq for seq in due if seq is not victim]

    def drop(self, seq: Sequence) -> None:
        num_held = len(slots_by_position(self.allocator, seq))
        num_unheld = num_unheld_slots(self.allocator)
        self.allocator.free(seq)
        assert num_unheld_slots(self.allocator) == num_unheld + num_held
        self.holders.remove(seq)
        self.follow()

    @rule(which=st.integers(0, 30))
    def abort(self, which: int) -> None:
        """Somebody leaves early, as others end at a commit: what moves has moved."""
        if which < len(self.holders):
            seq = self.holders[which]
            self.step()
            if seq in self.holders:
                self.drop(seq)

    @rule(num_steps=st.integers(1, 12), preempt=st.booleans())
    def run(self, num_steps: int, preempt: bool) -> None:
        """Some of what the engine does all the time."""
        for _ in range(num_steps):
            self.grow(preempt)
            self.step()

    @rule()
    def step(self) -> None:
        """Copies in the order of the log, then new tokens; those that have their last one leave."""
        self.memory.carry_out(self.log[self.num_carried_out :])
        self.num_carried_out = len(self.log)
        for seq in self.holders:
            row, slots, start = (
                seq.row,
                slots_by_position(self.allocator, seq),
                self.committed[seq.row],
            )
            decoding = self.decoding(seq)
            stop = min(start + 1, self.room[row], seq.end) if decoding else self.prefilled[row]
            if self.allocator.keeps_kv:
                self.memory.compute(row, slots, start, stop)
            self.committed[row] = stop
        self.allocator.end_step()
        assert (self.allocator.pending_slots, self.allocator.moved_slots) == (0, 0)
        self.follow()
        for seq in [seq for seq in self.holders if self.committed[seq.row] == seq.end]:
            self.drop(seq)

    @invariant()
    def the_model_agrees(self) -> None:
        self.allocator.check(self.holders)
        free, cached = free_slots(self.allocator), cached_slots(self.allocator)
        held = {slot: seq.row for seq in self.holders for slot in slots_of(self.allocator, seq)}
        assert held == self.owners, "INV-2: who holds what has changed without a decision"
        assert not free & held.keys(), "INV-2"
        assert not cached & (free | held.keys()), "INV-2"
        assert free | cached | held.keys() == set(range(self.num_slots)), "INV-1"
        assert len(free) == self.allocator.num_free_slots(), "INV-1"
        assert len(cached) == self.allocator.num_cached_slots(), "INV-1"
        num_in_tables = sum(len(slots_of(self.allocator, seq)) for seq in self.holders)
        assert len(held) == num_in_tables, (
            "INV-3: nothing is shared, so a slot is in one table, once"
        )

    def teardown(self) -> None:
        if hasattr(self, "allocator"):
            self.step()
            while self.holders:
                self.drop(self.holders[0])
            unheld = free_slots(self.allocator) | cached_slots(self.allocator)
            assert unheld == set(range(self.num_slots)), "INV-8"
            assert not self.owners, "INV-8"


@pytest.mark.parametrize("policy", ALLOCATORS)
def test_any_actions_keep_the_pool_whole(policy: str) -> None:
    machine = type("Machine", (PoolMachine,), {"policy": policy})
    # Runs that move, and compaction above all, take luck to come about.
    num_examples = examples(200 if policy == "contiguous" else 60)
    run_state_machine_as_test(
        machine, settings=settings(max_examples=num_examples, stateful_step_count=40)
    )
