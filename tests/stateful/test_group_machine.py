"""Random actions on groups in tiny pools, against a model that knows which token every slot holds.

Fork, copy-on-write, swaps that take their time, preemption, recompute, leaving: what the block manager decides is read
from its decision log alone.
"""

from collections import Counter
from collections.abc import Callable

from example_counts import examples
from group_model import GroupModel
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from kvtwin.sim import PolicySettings
from kvtwin.sim.vllm_v0.group import Group
from kvtwin.sim.vllm_v0.policy import VllmV0


class GroupMachine(RuleBasedStateMachine):
    """Plays the engine's part. the model follows the log."""

    policy_type: Callable[[PolicySettings], VllmV0] = VllmV0
    seen: Counter[str]

    @initialize(
        num_blocks=st.integers(4, 14),
        block_size=st.integers(1, 4),
        num_host_blocks=st.integers(0, 10),
        watermark=st.sampled_from([0.0, 0.1, 0.25]),
    )
    def start(
        self, num_blocks: int, block_size: int, num_host_blocks: int, watermark: float
    ) -> None:
        self.size = block_size
        self.policy = self.policy_type(
            PolicySettings(
                num_slots=num_blocks * block_size,
                max_model_len=1000,
                block_size=block_size,
                watermark=watermark,
                num_host_slots=num_host_blocks * block_size,
            )
        )
        self.model = GroupModel(self.policy, self.seen)
        self.running: list[Group] = []
        self.preempted: list[Group] = []
        self.num_rows = 0

    @rule(
        num_prompt=st.integers(1, 9),
        outputs=st.lists(st.integers(1, 9), min_size=1, max_size=4),
        is_beam=st.booleans(),
    )
    def admit(self, num_prompt: int, outputs: list[int], is_beam: bool) -> None:
        outputs = [outputs[0]] * len(outputs) if is_beam else outputs
        group = Group(self.num_rows, 0, num_prompt, outputs, is_beam)
        num_blocks = -(-num_prompt // self.size)
        free, kept = self.policy.device.num_free_blocks, self.policy.watermark_blocks
        fits = self.policy.can_allocate(num_blocks)
        assert fits == (free - num_blocks >= kept)
        if not fits or self.policy.group_need(num_prompt, outputs) > self.policy.largest_grant:
            return
        self.num_rows += 1
        assert self.policy.allocate(group) == num_blocks
        self.model.follow()
        prompt = [self.model.write(group.row, position) for position in range(num_prompt)]
        for branch in group.branches:
            self.model.tokens[group.row, branch.branch] = list(prompt)
        self.model.store(group, 0)
        self.running.append(group)
        for branch in [b for b in group.branches if b.end == num_prompt]:
            self.leave(group, branch.branch)

    @rule(which=st.integers(0, 9), num_steps=st.integers(1, 5))
    def decode(self, which: int, num_steps: int) -> None:
        """Some steps of one group; without room the latest is preempted, or nothing is done."""
        for _ in range(num_steps):
            if not self.running:
                return
            group = self.running[which % len(self.running)]
            free = self.policy.device.num_free_blocks
            assert self.policy.can_append(group) == (len(group.branches) <= free)
            if not self.policy.can_append(group):
                return
            committed = len(self.model.tokens[group.row, group.branches[0].branch])
            self.policy.append(group, committed)
            self.model.follow()
            for branch in group.branches:
                key = group.row, branch.branch
                self.model.read(key)
                self.model.tokens[key].append(self.model.write(group.row, committed))
            self.model.store(group, committed)
            group.fresh = False
            for branch in [b for b in group.branches if b.end == committed + 1]:
                self.leave(group, branch.branch)

    def leave(self, group: Group, number: int) -> None:
        branch = next(b for b in group.branches if b.branch == number)
        free = self.policy.device.num_free_blocks
        num_freed = self.policy.free(branch)
        assert self.policy.device.num_free_blocks == free + num_freed
        group.branches.remove(branch)
        self.model.follow()
        del self.model.tokens[group.row, number]
        if not group.branches:
            self.running.remove(group)

    @rule(which=st.integers(0, 9), number=st.integers(0, 3))
    def abort(self, which: int, number: int) -> None:
        if which < len(self.running) and number < len(self.running[which].branches):
            self.leave(self.running[which], self.running[which].branches[number].branch)

    @rule(which=st.integers(0, 9), child=st.integers(0, 3), parent=st.integers(0, 3))
    def fork(self, which: int, child: int, parent: int) -> None:
        """A beam is dropped, and another one goes on twice."""
        if not self.running:
            return
        group = self.running[which % len(self.running)]
        dropped = group.branches[child % len(group.branches)]
        kept = group.branches[parent % len(group.branches)]
        if not group.is_beam or dropped is kept:
            return
        self.policy.fork(dropped, kept)
        self.model.follow()
        self.seen["fork"] += 1
        keys = [(group.row, branch.branch) for branch in (dropped, kept)]
        assert self.model.tables[keys[0]] == self.model.tables[keys[1]]
        self.model.tokens[keys[0]] = list(self.model.tokens[keys[1]])

    @rule(which=st.integers(0, 9), swap=st.booleans())
    def preempt(self, which: int, swap: bool) -> None:
        if not self.running:
            return
        group = self.running[which % len(self.running)]
        key = group.row, group.branches[0].branch
        group.known = len(self.model.tokens[key]) + 1
        blocks = {block for b in group.branches for block in self.model.tables[group.row, b.branch]}
        group.num_blocks = len(blocks)
        assert self.policy.can_swap_out(group) == (len(blocks) <= self.policy.host.num_free_blocks)
        if swap and not self.policy.can_swap_out(group):
            return
        self.running.remove(group)
        if swap:
            self.model.swap_group(group, is_out=True)
        else:
            shape = {b.branch: list(b.blocks) for b in group.branches}
            self.policy.forget(group)
            self.model.follow()
            assert {b.branch: b.blocks for b in group.branches} == shape
        self.preempted.append(group)

    @rule()
    def resume(self) -> None:
        """The first one back, from the host or by computing it again."""
        if not self.preempted:
            return
        group = self.preempted[0]
        if any(moving is group for moving, *_ in self.model.pinned):
            return
        if not self.policy.can_allocate(group.num_blocks + len(group.branches)):
            return
        self.preempted.remove(group)
        if group.row in self.policy.on_host:
            self.model.swap_group(group, is_out=False)
            return
        shape = [[b.blocks.index(x) for x in b.blocks] for b in group.branches]
        assert self.policy.restore(group) == group.num_blocks
        self.model.follow()
        self.seen["restore"] += 1
        assert shape == [[b.blocks.index(x) for x in b.blocks] for b in group.branches]
        self.model.store(group, 0)
        self.running.append(group)

    @rule()
    def arrive(self) -> None:
        if self.model.pinned:
            group = self.model.arrive()
            if group is not None:
                self.running.append(group)

    @invariant()
    def blocks_are_where_the_tables_say(self) -> None:
        if not hasattr(self, "policy"):
            return
        policy = self.policy
        leaving = [transfer for transfer in policy.transfers if transfer.is_out]
        coming = [transfer.group for transfer in policy.transfers if not transfer.is_out]
        branches = [branch for group in [*self.running, *coming] for branch in group.branches]
        assert {(b.row, b.branch): b.blocks for b in branches} == self.model.tables
        policy.check([*branches, *leaving])
        counted = Counter(block for table in self.model.tables.values() for block in table)
        counted.update(block for _, blocks, _, out in self.model.pinned if out for block in blocks)
        assert list(policy.device.refs) == [
            counted[block] for block in range(policy.device.num_blocks)
        ]
        free = {
            block
            for first, num in policy.free_runs()
            for block in range(first // self.size, (first + num) // self.size)
        }
        assert free == set(range(policy.device.num_blocks)) - set(counted), "INV-2"

    def teardown(self) -> None:
        """INV-8: everybody leaves, one way or the other, and nothing is left."""
        if not hasattr(self, "policy"):
            return
        while self.model.pinned:
            self.arrive()
        for group in list(self.running):
            for branch in list(group.branches):
                self.leave(group, branch.branch)
        for group in self.preempted:
            if group.row in self.policy.on_host:
                self.policy.host.drop([x for b in group.branches for x in b.blocks])
        for pool in (self.policy.device, self.policy.host):
            assert pool.num_free_blocks == pool.num_blocks, f"INV-8: {pool.name}"
        assert not self.model.device, f"INV-8: {self.model.device}"


def test_groups_of_any_kind() -> None:
    seen: Counter[str] = Counter()
    machine = type("Machine", (GroupMachine,), {"seen": seen})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples(100), stateful_step_count=40)
    )
    assert set(seen) >= {"fork", "copy", "share", "swap_out", "swap_in", "free", "restore"}, seen
