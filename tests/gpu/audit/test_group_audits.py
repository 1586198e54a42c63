"""The audit of groups of layers: clean on a device that shares nothing with the executor, and a log by hand."""

from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_device import audited_run
from naive_group_device import NaiveGroupDevice
from random_cases import configs, traces

from kvtwin.gpu.audit.claims import claims_of
from kvtwin.gpu.audit.contents import NOTHING
from kvtwin.gpu.audit.findings import Findings
from kvtwin.gpu.audit.group_replay import GroupReplay
from kvtwin.sim import BlockGroups, pool
from kvtwin.sim.decisions import Decisions

GROUPS = [
    BlockGroups((7,)),
    BlockGroups((1,)),
    BlockGroups((None, 5), (3, 1)),
    BlockGroups((9, None), (1, 1)),
    BlockGroups((4, None, 13), (1, 2, 1)),
]


@pytest.mark.parametrize("policy", ["vllm-v1", "vllm-v1-no-caching"])
def test_random_runs_are_clean(policy: str, costs: list[str]) -> None:
    @settings(max_examples=examples(12))
    @given(
        traces(most=12, with_content=policy == "vllm-v1"),
        configs(policy, costs),
        st.sampled_from(GROUPS),
        st.integers(1, 3),
    )
    def check(trace: Any, config: Any, groups: BlockGroups, every: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pool, "vllm_groups", lambda *_, **__: groups)
            audit = audited_run(trace, config, NaiveGroupDevice, every=every)
        assert [str(finding) for finding in audit.findings.kept] == []

    check()


def replayed(*steps: list[tuple[Any, ...]]) -> tuple[GroupReplay, Findings]:
    """Steps of (action, row, first, num, group) and ("work", row, first, num), in blocks of 4."""
    log, findings = Decisions(), Findings()
    replay = GroupReplay(
        log, 64, 4, findings, lambda key: np.arange(40) + 1000 * key[0] + 100 * key[1], lambda _: 40
    )
    for number, entries in enumerate(steps):
        log.step = number
        for entry in entries:
            if entry[0] != "work":
                log.add(*entry)
        replay.follow()
        work = [(row, group, *span) for _, row, *span in entries[-1:] for group in (0, 1)]
        replay.compute(number, work if entries[-1][0] == "work" else [])
    return replay, findings


def held(replay: GroupReplay) -> dict[int, int]:
    """Token by slot, of those that have been computed."""
    claims = claims_of(replay)
    pairs = zip(claims.slots.tolist(), claims.tokens.tolist(), strict=True)
    return {slot: token for slot, token in pairs if token != NOTHING}


def blocks(**firsts: int) -> dict[int, int]:
    """By slot, the tokens of whole blocks, whose names are `b` and their number, from their first one on."""
    return {4 * int(name[1:]) + i: first + i for name, first in firsts.items() for i in range(4)}


def test_positions_stay_when_what_is_in_front_goes() -> None:
    first = [
        *(("grant", 1, block, 1, 0) for block in (1, 2)),
        *(("grant", 1, block, 1, 1) for block in (3, 4)),
        ("work", 1, 0, 8),
    ]
    second = [
        ("free", 1, 3, 1, 1),
        ("extend", 1, 5, 1, 0),
        ("extend", 1, 3, 1, 1),
        ("work", 1, 8, 4),
    ]
    replay, findings = replayed(first, second)
    assert held(replay) == blocks(b1=1000, b2=1004, b5=1008, b4=1104, b3=1108)
    assert replay.group_of[:6].tolist() == [0, 0, 0, 1, 1, 0]
    # What was freed in front of the window is left there for others, until the block is granted anew.
    replay, _ = replayed(first, second[:1])
    assert replay.left[12:16].tolist() == list(range(1100, 1104))
    freed = [("free", 1, block, 1, group) for block, group in ((5, 0), (2, 0), (1, 0), (3, 1))]
    replay, _ = replayed(first, second, freed)
    assert held(replay) == blocks(b4=1104), "one block is left, at its place"
    replay, more = replayed(first, second, [*freed, ("free", 1, 4, 1, 1)])
    assert not replay.tables
    assert replay.most_known == {1: 13}
    assert not findings.num_findings + more.num_findings


def test_a_hit_begins_behind_what_is_skipped() -> None:
    replay, findings = replayed(
        [
            *(("grant", 1, block, 1, 0) for block in (1, 2)),
            *(("grant", 1, block, 1, 1) for block in (3, 4)),
            ("work", 1, 0, 8),
        ],
        [
            *(("share", 2, block, 1, 0) for block in (1, 2)),
            ("skip", 2, 0, 1, 1),
            ("share", 2, 4, 1, 1),
            ("grant", 2, 5, 1, 0),
            ("grant", 2, 6, 1, 1),
            ("work", 2, 8, 4),
        ],
    )
    of_request = {slot: token for slot, token in held(replay).items() if 2000 <= token < 3000}
    assert of_request == blocks(b1=2000, b2=2004, b5=2008, b4=2104, b6=2108)
    assert not findings.num_findings


def test_who_comes_back_at_once_begins_with_what_is_skipped() -> None:
    """Preempted and admitted again in the same step: the first it has is nothing, in front of what it finds."""
    taken = ((3, 0), (4, 0), (1, 1), (2, 1))
    replay, findings = replayed(
        [*(("grant", 1, block, 1, group) for block, group in taken), ("work", 1, 0, 8)],
        [
            *(("free", 1, block, 1, group) for block, group in taken),
            ("skip", 1, 0, 1, 0),
            ("share", 1, 4, 1, 0),
            *(("share", 1, block, 1, 1) for block in (1, 2)),
            ("grant", 1, 5, 1, 0),
            ("grant", 1, 6, 1, 1),
            ("work", 1, 8, 4),
        ],
    )
    assert held(replay) == blocks(b4=1004, b5=1008, b1=1100, b2=1104, b6=1108)
    assert not findings.num_findings


def test_a_window_of_a_token_leaves_nothing_for_a_moment() -> None:
    steps = [
        [("grant", 1, 1, 1, 0), ("work", 1, 0, 4)],
        [("free", 1, 1, 1, 0), ("extend", 1, 2, 1, 0), ("work", 1, 4, 4)],
    ]
    replay, _ = replayed(*steps)
    assert held(replay) == blocks(b2=1004)
    # Preempted, and admitted again in the same step, it begins anew.
    replay, _ = replayed(*steps, [("free", 1, 2, 1, 0), ("grant", 1, 2, 1, 0), ("work", 1, 0, 4)])
    assert held(replay) == blocks(b2=1000)
