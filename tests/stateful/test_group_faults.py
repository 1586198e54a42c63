"""Faults planted into sharing and swapping, and the invariant that notices each."""

from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import pytest
from naive_groups import NaiveGroups
from random_cases import config_of, trace_of

from kvtwin.sim import simulate
from kvtwin.sim.vllm_v0.engine import GroupEngine
from kvtwin.sim.vllm_v0.group import Branch, Group
from kvtwin.sim.vllm_v0.policy import Transfer, VllmV0

# Three samples each, or beams, in a pool that does not hold all: they copy, grow, leave for the host and come back.
TRACE = trace_of([(0, 6, 14), (0, 5, 9), (0, 9, 3), (0, 3, 17), (0, 7, 8), (0, 4, 4)])


class ForgetsAReference(VllmV0):
    def allocate(self, group: Group, found: Seq[int] = ()) -> int:
        num_blocks = super().allocate(group, found)
        self.device.refs[group.branches[-1].blocks[0]] -= 1
        return num_blocks


class WritesWhereOthersRead(VllmV0):
    def append(self, group: Group, committed: int) -> tuple[int, int]:
        if committed % self.block_slots:
            return 0, 0
        return super().append(group, committed)


class SharesTheWrongBeam(VllmV0):
    def fork(self, branch: Branch, parent: Branch) -> int:
        return 0


class KeepsABranch(VllmV0):
    def free(self, group: Group, branch: Branch) -> tuple[int, int]:
        branch.blocks = branch.blocks[1:]
        return super().free(group, branch)


class LeavesTooEarly(VllmV0):
    """The blocks of a group on its way out are free before they have been copied."""

    def swap_out(self, group: Group, end_ns: int) -> Transfer:
        transfer = super().swap_out(group, end_ns)
        self.device.drop(transfer.blocks)
        return transfer


class HostNotGivenBack(VllmV0):
    def arrive(self, transfer: Transfer) -> None:
        transfer.pinned_host_blocks = transfer.pinned_host_blocks[1:]
        super().arrive(transfer)


class SwapsTheWrongBlocks(VllmV0):
    def swap_in(self, group: Group, end_ns: int) -> Transfer:
        transfer = super().swap_in(group, end_ns)
        for branch in group.branches:
            branch.blocks.reverse()
        return transfer


class RefusesForEver(VllmV0):
    def can_allocate(self, num_blocks: int) -> bool:
        return False


class BlockInTwoTables(VllmV0):
    """Of two requests, with a count that says so: only the content tells."""

    last: Branch | None = None

    def allocate(self, group: Group, found: Seq[int] = ()) -> int:
        num_blocks = super().allocate(group, found)
        if self.last is not None and self.last.blocks and group.row == 1:
            for branch in group.branches:
                self.device.drop(branch.blocks[:1])
                branch.blocks[0] = self.last.blocks[0]
                self.device.share(branch.blocks[:1])
        self.last = group.branches[0]
        return num_blocks


@pytest.mark.parametrize(
    ("policy", "fields", "engine_type", "message"),
    [
        (ForgetsAReference, {"num_samples": 3}, GroupEngine, r"INV-3: device block \d+ is in 3"),
        (WritesWhereOthersRead, {"num_samples": 3}, NaiveGroups, "overwrites|INV-7"),
        (SharesTheWrongBeam, {"beam_width": 3}, NaiveGroups, r"INV-7: \d/\d reads"),
        (KeepsABranch, {"num_samples": 3}, GroupEngine, r"INV-3: device block \d+ is in \d tables"),
        (LeavesTooEarly, {"num_samples": 3}, GroupEngine, r"INV-3: device block \d+ is in 1"),
        (HostNotGivenBack, {"num_samples": 3}, GroupEngine, r"INV-3: host block \d+ is in 0"),
        (SwapsTheWrongBlocks, {"num_samples": 3}, NaiveGroups, r"INV-7: \d/\d reads"),
        (BlockInTwoTables, {"num_samples": 2}, GroupEngine, "INV-1: "),
        (RefusesForEver, {}, GroupEngine, "INV-5: nothing runs at 0 ns, 6 wait"),
        (VllmV0, {"num_samples": 3}, GroupEngine, None),
        (VllmV0, {"beam_width": 3}, NaiveGroups, None),
    ],
)
def test_a_faulty_block_manager_is_caught(
    policy: type[VllmV0],
    fields: dict[str, Any],
    engine_type: type[Any],
    message: str | None,
    tmp_path: Path,
) -> None:
    config = config_of(
        f"{policy.__module__}:{policy.__name__}",
        **fields,
        num_gpu_blocks_override=22,
        block_size=4,
        max_model_len=24,
        watermark=0.0,
        cost="constant:1000000",
    )
    options = {"engine_type": engine_type, "paranoid": True}
    if message is None:
        summary = simulate(TRACE, config, tmp_path, **options)
        assert summary["num_finished"] == TRACE.num_requests
        assert summary["swapping"]["num_groups_out"] > 0, "nobody is swapped: faults stay unseen"
        assert summary["sharing"]["num_copied_blocks"] > 0
        return
    with pytest.raises(AssertionError, match=message):
        simulate(TRACE, config, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists(), "a run that failed must leave nothing"
