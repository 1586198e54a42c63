"""The engine of the V1 policies with books of its own: what every slot holds, and which part it is in."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from kvtwin.sim.block_groups import ONE_GROUP, BlockGroups
from kvtwin.sim.plan import Plan
from kvtwin.sim.vllm_v1.engine import V1Engine

# Windows and slots of a token, by group; all divide what a token takes in the model.
GROUPS = (
    ONE_GROUP,
    BlockGroups((3,), (1,)),
    BlockGroups((None, 5), (1, 1)),
    BlockGroups((None, 4, 4), (2, 1, 1)),
    BlockGroups((7, None, 2), (3, 3, 2)),
    BlockGroups((None, 1, 9, None), (1, 1, 1, 1)),
)


class Watched(V1Engine):
    """Keeps what every cell holds, token by token, and counts the parts from tables and contents at every plan.

    A cell is a slot that a token takes: (block, token of the block, slot of the token). A token of several slots has
    them all or none, so that contents are kept by (block, token).
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        settings = self.policy.settings
        self.size, self.groups = settings.block_size, settings.groups
        self.contents: dict[tuple[int, int], Any] = {}
        self.unwritten_reads = self.shared = self.out_of_sight = self.held_back = 0
        self.known_at_admission: dict[tuple[int, int], int] = {}

    def token(self, row: int, position: int) -> Any:
        """What the trace says is there; a token like no other where it says nothing."""
        left = position
        pieces = self.requests.prompts[row] if self.requests.prompts else ()
        for stream, start, num_tokens in pieces:
            if left < num_tokens:
                return stream, start + left
            left -= num_tokens
        return "own", row, position

    def plan(self, now_ns: int) -> Plan | None:
        plan = super().plan(now_ns)
        if plan is not None:
            self.watch(plan)
        return plan

    def watch(self, plan: Plan) -> None:
        before, contexts = {}, []
        work = self.work(plan)
        for request, first, num_tokens in work:
            before[request] = first
            # A preempted one computes what it had generated before as part of its prompt.
            if first >= self.known_at_admission.setdefault(
                (request.row, request.serial), request.known
            ):
                assert num_tokens == 1
                contexts.append(first + 1)
        assert sum(num for _, _, num in work) == plan.num_prefill_tokens + plan.num_decode_tokens
        assert (len(contexts), sum(contexts)) == (plan.num_decode_tokens, plan.decode_context_slots)
        size = self.policy.block_slots
        for request in self.holders():
            held = {(block * size, size) for table in request.tables for block in table if block}
            assert set(self.policy.runs(request)) == held
            if request not in before:
                if request.decodes:
                    self.scheduler.settle(request)
                before[request] = request.computed
        counted: Counter[str] = Counter(rounding=self.policy.block_slots)  # the null block
        taken: set[int] = set()
        for group, window in enumerate(self.groups.windows):
            blocks = self.watch_group(group, window, work, before, counted)
            assert not taken & blocks, "a block serves two groups"
            taken |= blocks
        assert 0 not in taken, "the null block is held"
        counted["cached"] = sum(num for _, num in self.policy.cached_runs())
        free = [num for _, num in self.policy.free_runs()]
        assert self.policy.largest_free_run() == max(free, default=0)
        counted["free"] = sum(free)
        if self.refused_row is not None and self.scheduler.running:
            held_back = int(self.scheduler.settings.watermark * self.policy.pool.num_blocks)
            counted["external"] = min(counted["free"], held_back * self.policy.block_slots)
            counted["free"] -= counted["external"]
        assert counted.total() == self.policy.num_slots
        assert {name: num for name, num in self.parts().items() if num} == +counted
        self.held_back += counted["external"]

    def watch_group(
        self, group: int, window: int | None, work: Any, before: Any, counted: Counter[str]
    ) -> set[int]:
        """Counts the parts of one group's blocks, and returns these."""
        written: dict[tuple[int, int], Any] = {}
        for request, first, num_tokens in work:
            for position in range(first, first + num_tokens):
                cell = self.cell(request, group, position)
                assert cell is not None, "a token is computed into no block"
                assert cell not in written, f"{cell} is computed twice in a step"
                written[cell] = self.token(request.row, position)
        live, reserved, held = set(), set(), set()
        for request, num_before in before.items():
            table = request.tables[group]
            cells = [self.cell(request, group, at) for at in range(len(table) * self.size)]
            self.shared += len(held.intersection(cells) - {None})
            held.update(cells)
            first_read = 0 if window is None else max(0, num_before - window + 1)
            self.out_of_sight += cells[:num_before].count(None)
            for position in range(num_before):
                cell, token = cells[position], self.token(request.row, position)
                if written.get(cell) == token:
                    continue  # who shares it computes it in this very step
                live.add(cell)
                if position >= first_read:
                    assert cell is not None, f"position {position} is in sight and in no block"
                    self.unwritten_reads += self.contents.get(cell) != token
            reserved.update(cells[num_before : request.end_tokens - 1])
        for cells in (held, live, reserved):
            cells.discard(None)
        slots, blocks = self.groups.token_slots[group], {block for block, _ in held}
        counted["live"] += len(live) * slots
        counted["reserved"] += len(reserved - live) * slots
        counted["internal"] += len(held - live - reserved) * slots
        counted["rounding"] += len(blocks) * (self.policy.block_slots - self.size * slots)
        self.contents |= written
        return blocks

    def cell(self, request: Any, group: int, position: int) -> tuple[int, int] | None:
        """None: its block is out of sight and gone."""
        block = request.tables[group][position // self.size]
        return (block, position % self.size) if block else None


def check_files(directory: Path, block_slots: int) -> None:
    """The log and the snapshots of a run, by themselves.

    Nobody is granted what is held, a block is shared within its group, and nothing is left; snapshots are of whole
    blocks.
    """
    holders: dict[int, Counter[int]] = {}
    groups: dict[int, int] = {}
    for decision in pq.read_table(directory / "decisions.parquet").to_pylist():
        action, row, block, group = (
            decision[name] for name in ("action", "row", "first", "branch")
        )
        if action == "skip":  # null blocks, which nobody holds
            assert (block, decision["num"] > 0) == (0, True), decision
            continue
        held = holders.setdefault(block, Counter())
        if action in ("grant", "extend"):
            assert not held.total(), decision
            groups[block] = group
        assert groups[block] == group, decision
        held[row] += -1 if action == "free" else 1
        assert 0 <= held[row] <= 1, decision
    assert not any(held.total() for held in holders.values())
    for piece in pq.read_table(directory / "snapshots.parquet").to_pylist():
        assert (piece["first_slot"] % block_slots, piece["num_slots"]) == (0, block_slots), piece
