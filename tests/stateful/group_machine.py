"""Random actions on groups in tiny pools, against a model that knows which token every slot holds.

Fork, copy-on-write, swaps that take their time, preemption, recompute, leaving, and with prefix caching hits and
eviction: what the block manager decides is read from its decision log alone.
"""

from collections import Counter
from collections.abc import Callable

from group_model import GroupModel
from group_requests import KINDS, Request, requests
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from kvtwin.sim import PolicySettings
from kvtwin.sim.prompts import Pieces
from kvtwin.sim.vllm_v0.group import Group
from kvtwin.sim.vllm_v0.policy import VllmV0


class GroupMachine(RuleBasedStateMachine):
    """Plays the engine's part; the model follows the log."""

    policy_type: Callable[[PolicySettings], VllmV0] = VllmV0
    seen: Counter[str]

    @initialize(
        num_blocks=st.integers(4, 16),
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
        kind=st.sampled_from(KINDS),
        request=requests(),
        which=st.integers(0, 9),
        number=st.integers(0, 3),
        other=st.integers(0, 3),
        num_steps=st.integers(1, 5),
    )
    def act(
        self, kind: str, request: Request, which: int, number: int, other: int, num_steps: int
    ) -> None:
        """One rule, so that no example leaves out a kind of action."""
        if kind == "admit":
            self.admit(*request)
        elif kind == "decode":
            self.decode(which, num_steps)
        elif kind == "abort":
            self.abort(which, number)
        elif kind == "fork":
            self.fork(which, number, other)
        elif kind == "resume":
            self.resume()
        elif kind == "arrive":
            self.arrive()
        else:
            self.preempt(which, swap=kind == "swap out")

    def admit(self, num_prompt: int, outputs: list[int], is_beam: bool, pieces: Pieces) -> None:
        group = Group(self.num_rows, 0, num_prompt, outputs, is_beam, pieces)
        num_blocks = -(-num_prompt // self.size)
        free, kept = self.num_unheld(), self.policy.watermark_blocks
        fits = self.policy.can_allocate(num_blocks)
        assert fits == (free - num_blocks >= kept)
        if not fits or self.policy.group_need(num_prompt, outputs) > self.policy.largest_grant:
            return
        self.num_rows += 1
        self.compute_prompt(group)

    def compute_prompt(self, group: Group) -> None:
        """All that is known of a group without memory, except for what is found."""
        key, num_blocks = (group.row, group.branches[0].branch), -(-group.known // self.size)
        tokens = self.model.first_tokens(group, key[1], group.known)
        found = self.policy.find(group)
        expected = self.model.longest_hit(tokens)
        assert found == expected, f"{found} are found, not {expected}"
        self.seen["found"] += len(found)
        held = [block for block in found if self.model.holders(block)]
        assert self.policy.num_held(found) == len(held)
        assert self.policy.allocate(group, found) == num_blocks
        self.model.follow()
        assert self.model.tables[key][: len(found)] == found
        for branch in group.branches:
            key = group.row, branch.branch
            self.model.tokens[key] = self.model.first_tokens(group, branch.branch, group.known)
        self.model.write(group, len(found) * self.size)
        self.read_all(group)
        self.can_find(group, group.known)
        self.running.append(group)
        for branch in [b for b in group.branches if b.end == group.known]:
            self.leave(group, branch.branch)

    def can_find(self, group: Group, committed: int) -> None:
        self.policy.store(group, committed)
        self.model.can_find(group, committed)

    def read_all(self, group: Group) -> None:
        for branch in group.branches:
            self.model.read((group.row, branch.branch))

    def decode(self, which: int, num_steps: int) -> None:
        """Some steps of one group; without room the latest is preempted, or nothing is done."""
        for _ in range(num_steps):
            if not self.running:
                return
            group = self.running[which % len(self.running)]
            room = self.num_unheld()
            assert self.policy.can_append(group) == (len(group.branches) <= room)
            if not self.policy.can_append(group):
                return
            committed = len(self.model.tokens[group.row, group.branches[0].branch])
            self.policy.append(group, committed)
            self.model.follow()
            self.read_all(group)
            for branch in group.branches:
                key = group.row, branch.branch
                tokens = self.model.tokens[key]
                tokens.append(self.model.next_token(group, branch.branch, tokens))
                block = self.model.slot(key, committed) // self.size
                assert self.model.holders(block) == [key], "a block of several is written"
            self.model.write(group, committed)
            self.can_find(group, committed + 1)
            group.fresh = False
            for branch in [b for b in group.branches if b.end == committed + 1]:
                self.leave(group, branch.branch)

    def leave(self, group: Group, number: int) -> None:
        branch = next(b for b in group.branches if b.branch == number)
        room, blocks = self.num_unheld(), set(branch.blocks)
        num_left, num_others = self.policy.free(group, branch)
        group.branches.remove(branch)
        self.model.follow()
        assert self.num_unheld() == room + num_left - num_others
        left = blocks.difference(*(other.blocks for other in group.branches))
        assert num_left == len(left)
        assert num_others == sum(bool(self.model.holders(block)) for block in left)
        del self.model.tokens[group.row, number]
        if not group.branches:
            self.running.remove(group)

    def abort(self, which: int, number: int) -> None:
        if which < len(self.running) and number < len(self.running[which].branches):
            self.leave(self.running[which], self.running[which].branches[number].branch)

    def fork(self, which: int, child: int, parent: int) -> None:
        """A beam is dropped, and another one goes on twice."""
        searches = [group for group in self.running if group.is_beam and len(group.branches) > 1]
        if not searches:
            return
        group = searches[which % len(searches)]
        beams, step = group.branches, 1 + parent % (len(group.branches) - 1)
        dropped, kept = beams[child % len(beams)], beams[(child + step) % len(beams)]
        self.policy.fork(dropped, kept)
        self.model.follow()
        self.seen["fork"] += 1
        keys = [(group.row, branch.branch) for branch in (dropped, kept)]
        assert self.model.tables[keys[0]] == self.model.tables[keys[1]]
        self.model.tokens[keys[0]] = list(self.model.tokens[keys[1]])

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
            others = [block for block in blocks if self.model.holders(block)]
            assert self.policy.num_held(group.block_ids()) == len(others)
            if len(group.branches) == 1:  # its tokens are one prompt from now on
                group.branches[0].blocks, group.num_blocks = [], 0
        self.preempted.append(group)

    def resume(self) -> None:
        """The first one back, from the host or by computing it again."""
        if not self.preempted:
            return
        group = self.preempted[0]
        if any(moving is group for moving, *_ in self.model.pinned):
            return
        needed = group.num_blocks + len(group.branches)
        if not group.num_blocks:
            needed = -(-group.known // self.size)
        if not self.policy.can_allocate(needed):
            return
        self.preempted.remove(group)
        if not group.num_blocks:
            self.seen["recompute"] += 1
            self.compute_prompt(group)
            return
        if group.row in self.policy.on_host:
            self.model.swap_group(group, is_out=False)
            return
        shape = [[b.blocks.index(x) for x in b.blocks] for b in group.branches]
        assert self.policy.restore(group) == group.num_blocks
        self.model.follow()
        self.seen["restore"] += 1
        assert shape == [[b.blocks.index(x) for x in b.blocks] for b in group.branches]
        self.model.write(group, 0)
        self.can_find(group, group.known - 1)
        self.running.append(group)

    def arrive(self) -> None:
        if self.model.pinned:
            leaving = Counter(x for _, blocks, _, out in self.model.pinned if out for x in blocks)
            alone = [x for x, num in leaving.items() if len(self.model.holders(x)) == num]
            assert self.policy.num_leaving_blocks() == len(alone)
            group = self.model.arrive()
            if group is not None:
                self.can_find(group, group.known - 1)
                self.running.append(group)

    def num_unheld(self) -> int:
        return self.policy.device.num_unheld_blocks

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
        cached = set(self.model.cached)
        assert not cached & set(counted), "INV-2: cached blocks are held"
        assert self.blocks_in(policy.cached_runs()) == cached, "INV-2"
        free = set(range(policy.device.num_blocks)) - set(counted) - cached
        assert self.blocks_in(policy.free_runs()) == free, "INV-2"
        unheld = policy.num_free_slots() + policy.num_cached_slots()
        assert unheld == self.num_unheld() * self.size == len(free | cached) * self.size

    def blocks_in(self, runs: list[tuple[int, int]]) -> set[int]:
        return {
            block
            for first, num in runs
            for block in range(first // self.size, (first + num) // self.size)
        }

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
            assert pool.num_unheld_blocks == pool.num_blocks, f"INV-8: {pool.name}"
        left = {slot // self.size for slot in self.model.device}
        assert left == set(self.model.cached), f"INV-8: {self.model.device}"
        assert self.blocks_in(self.policy.cached_runs()) == left
