"""A decision log by hand: who holds what afterwards, and what the replay makes of logs that cannot be."""

from typing import Any

import numpy as np
import pytest

from kvtwin.gpu.audit.claims import claims_of
from kvtwin.gpu.audit.contents import NOTHING
from kvtwin.gpu.audit.findings import Findings
from kvtwin.gpu.audit.replay import Replay
from kvtwin.sim.decisions import Decisions

SLOTS, SIZE = 32, 4


def tokens(key: tuple[int, int]) -> Any:
    """Ids that say what they are: row, branch, position; prompts of two tokens are common to branches."""
    positions = np.arange(40)
    return positions + 1000 * key[0] + 100 * key[1] * (positions > 1)


def replayed(
    *steps: list[tuple[Any, ...]], size: int = SIZE, num_reusable: int = 6
) -> tuple[Replay, Findings]:
    """Steps of (action, row, first, num[, branch, source]) and ("work", row, branch, first, num)."""
    log, findings = Decisions(), Findings()
    replay = Replay(log, SLOTS, size, findings, tokens, lambda row: num_reusable)
    for number, entries in enumerate(steps):
        log.step = number
        for entry in entries:
            if entry[0] != "work":
                log.add(*entry)
        replay.follow()
        replay.compute(number, [entry[1:] for entry in entries if entry[0] == "work"])
    return replay, findings


def held(replay: Replay, host: bool = False) -> dict[int, int]:
    """Token by slot, of those that have been computed."""
    claims = claims_of(replay, host)
    pairs = zip(claims.slots.tolist(), claims.tokens.tolist(), strict=True)
    return {slot: token for slot, token in pairs if token != NOTHING}


def test_blocks_are_granted_extended_and_freed() -> None:
    replay, findings = replayed(
        [("grant", 1, 3, 1), ("grant", 1, 0, 1), ("work", 1, 0, 0, 6)],
        [("extend", 1, 5, 1), ("work", 1, 0, 6, 3)],
    )
    assert held(replay) == dict(
        zip([12, 13, 14, 15, 0, 1, 2, 3, 20], range(1000, 1009), strict=True)
    )
    assert replay.tables[1, 0].before == 6
    replay, more = replayed(
        [("grant", 1, 3, 1), ("grant", 1, 0, 1), ("work", 1, 0, 0, 7)],
        [("free", 1, 3, 1), ("free", 1, 0, 1)],
    )
    assert not replay.tables
    assert replay.most_known == {1: 8}
    # Six tokens may be of use to others, wherever they were.
    assert replay.left[[12, 13, 14, 15, 0, 1, 2]].tolist() == [*range(1000, 1006), NOTHING]
    assert not findings.num_findings + more.num_findings


def test_a_move_keeps_its_source_until_it_is_vacated() -> None:
    steps = [
        [("grant", 1, 4, 3), ("work", 1, 0, 0, 3)],
        [("move", 1, 10, 5), ("work", 1, 0, 3, 1)],
    ]
    replay, findings = replayed(*steps, size=1)
    claims = claims_of(replay)
    assert claims.slots.tolist() == [10, 11, 12, 13, 14, 4, 5, 6]
    assert claims.tokens.tolist() == [1000, 1001, 1002, 1003, NOTHING, 1000, 1001, 1002]
    assert claims.is_source.tolist() == [False] * 5 + [True] * 3
    assert claims.is_arriving.tolist() == [True] * 5 + [False] * 3
    replay, _ = replayed(*steps, [("vacate", 1, 4, 3)], size=1)
    assert held(replay) == {10: 1000, 11: 1001, 12: 1002, 13: 1003}
    assert not findings.num_findings


def test_slides_pack_over_sources_of_the_same_step() -> None:
    replay, findings = replayed(
        [("grant", 1, 0, 2), ("grant", 2, 4, 2), ("work", 1, 0, 0, 2), ("work", 2, 0, 0, 2)],
        [("move", 1, 8, 3), ("move", 2, 0, 2), ("move", 1, 2, 3)],
        size=1,
    )
    assert held(replay) == {0: 2000, 1: 2001, 2: 1000, 3: 1001}
    assert not findings.num_findings


def test_forks_share_until_they_write() -> None:
    steps = [
        [("grant", 1, 2, 1), ("share", 1, 2, 1, 1), ("work", 1, 0, 0, 2)],
        [("copy", 1, 6, 1, 0, 2), ("work", 1, 0, 2, 1), ("work", 1, 1, 2, 1)],
    ]
    replay, findings = replayed(*steps)
    assert held(replay) == {24: 1000, 25: 1001, 26: 1002, 8: 1000, 9: 1001, 10: 1102}
    # Branch 0 goes on from branch 1, and has its past from then on.
    replay, more = replayed(
        *steps, [("share", 1, 2, 1, 0), ("free", 1, 6, 1, 0), ("copy", 1, 5, 1, 1, 2)]
    )
    found = held(replay)
    assert [found[slot] for slot in (8, 9, 10)] == [1000, 1001, 1102]
    assert replay.tokens_of((1, 0))[:4].tolist() == [1000, 1001, 1102, 1003]
    assert not findings.num_findings + more.num_findings


def test_swaps_leave_and_come_back() -> None:
    steps = [
        [("grant", 1, 2, 1), ("share", 1, 2, 1, 1), ("work", 1, 0, 0, 2)],
        [("swap_out", 1, 0, 1, 0, 2)],
    ]
    replay, findings = replayed(*steps)
    assert held(replay, host=True) == {0: 1000, 1: 1001}
    assert held(replay) == {8: 1000, 9: 1001}, "until the transfer has ended"
    steps += [[("vacate", 1, 2, 1)], [("swap_in", 1, 7, 1, 0, 0)]]
    assert held(replayed(*steps[:3])[0]) == {}
    replay, more = replayed(*steps)
    assert held(replay) == {28: 1000, 29: 1001}
    assert replay.tables[1, 1].units == [7]
    replay, _ = replayed(
        *steps, [("vacate_host", 1, 0, 1), ("free", 1, 7, 1), ("free", 1, 7, 1, 1)]
    )
    assert held(replay, host=True) == held(replay) == {}
    assert not findings.num_findings + more.num_findings


def test_what_leaves_for_the_host_may_be_found_and_stays_findable() -> None:
    """Request 2 holds a block that is on its way out, and request 3 finds one that has left."""
    steps = [
        [("grant", 1, 2, 1), ("grant", 1, 3, 1), ("work", 1, 0, 0, 8)],
        [("share", 2, 2, 1), ("swap_out", 1, 0, 1, 0, 2), ("swap_out", 1, 1, 1, 0, 3)],
        [("vacate", 1, 2, 1), ("vacate", 1, 3, 1)],
    ]
    replay, findings = replayed(*steps)
    assert replay.tables[2, 0].units == [2]
    assert replay.left[8:12].tolist() == [NOTHING] * 4, "request 2 holds it"
    # Six tokens may be of use to others.
    assert replay.left[12:16].tolist() == [1004, 1005, NOTHING, NOTHING]
    replay, more = replayed(*steps, [("share", 3, 3, 1)])
    assert replay.left[12:16].tolist() == [NOTHING] * 4
    assert not findings.num_findings + more.num_findings


@pytest.mark.parametrize(
    ("entries", "line"),
    [
        (
            [("grant", 2, 3, 1)],
            "double grant: request 2: expected unit 3 free, found held by request 1",
        ),
        ([("grant", 2, 8, 1)], "outside: request 2: expected below 8, found 1 units from 8"),
        ([("free", 1, 4, 1)], "not held: request 1: expected 1 units from 4, found 1 others"),
        ([("free", 2, 4, 1)], "not held: request 2: expected 1 units from 4, found no table"),
        ([("vacate", 1, 4, 1)], "not held: request 1: expected a copy from unit 4, found 0 others"),
        ([("move", 1, 7, 2)], "outside: request 1: expected below 8, found 2 units from 7"),
        ([("move", 2, 4, 1)], "not held: request 2: expected one run to move, found 0 units"),
        (
            [("copy", 1, 4, 1, 0, 3)],
            "copy: request 1: expected unit 3 shared, found held by request 1",
        ),
        (
            [("swap_out", 1, 0, 1, 0, 5)],
            "not held: request 1: expected 1 units from 5, found 1 oth",
        ),
        ([("work", 2, 0, 0, 1)], "no table: request 2: expected computes nothing, found from 0"),
        ([("work", 1, 0, 1, 1)], "order: request 1: expected position 2, found 1"),
        (
            [("share", 2, 3, 1), ("swap_out", 1, 0, 1, 0, 3)],
            "swap: request 1: expected block 3 in no table, found in 1 of others",
        ),
    ],
)
def test_a_log_that_cannot_be_is_noticed(entries: list[tuple[Any, ...]], line: str) -> None:
    first = [("grant", 1, 3, 1), ("work", 1, 0, 0, 2)]
    _, findings = replayed(first, entries, num_reusable=0)
    assert str(findings.kept[0]).startswith(f"step 1: {line}"), [str(f) for f in findings.kept]
