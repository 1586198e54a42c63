"""What is made of slots whose content and whose holders are given: findings, words and counts."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kvtwin.gpu.audit.claims import Claims
from kvtwin.gpu.audit.contents import MIXED, NOTHING, POISON
from kvtwin.gpu.audit.findings import MAX_KEPT, Findings
from kvtwin.gpu.audit.slot_checks import SlotChecks

SIZE = 2  # slots of a block
Entry = tuple[int, int, int]  # slot, position, token


def claims(*entries: Entry, num_sources: int = 0) -> Claims:
    """Entry i is of request i."""
    slots, positions, tokens = np.array(entries, dtype=np.int64).reshape(-1, 3).T
    num = len(entries)
    is_source = np.arange(num) >= num - num_sources
    nowhere = np.zeros(num, dtype=bool)
    keys = [(row, 0) for row in range(num)]
    return Claims(keys, slots, np.arange(num), positions, tokens, is_source, nowhere, "branch")


class Checks:
    """The checks, and what they have found; tokens are named by their numbers."""

    def __init__(self, left: list[int] | None = None) -> None:
        self.findings, self.looked_at = Findings(), list[Any]()
        index: Any = SimpleNamespace(classify=self._classify, pieces_of=self._pieces)
        planned: Any = SimpleNamespace(where=lambda token: f"token {token}")
        replay: Any = SimpleNamespace(block_slots=SIZE, left=np.array(left or []))
        layers: Any = ["device"]
        self.checks = SlotChecks(layers, index, planned, replay, self.findings)

    def _classify(self, layers: Any) -> Any:
        """A host's slot holds the token that its K is equal to."""
        (self.layer,) = layers
        return self.layer[0].flatten().long().numpy()

    def _pieces(self, layers: Any, slot: int) -> list[tuple[int, str, int, int]]:
        self.looked_at.append((layers, slot))
        return [(0, "key", 7, 3), (0, "value", POISON, -1), (1, "key", 8, 4), (1, "value", 9, -1)]

    @property
    def lines(self) -> list[str]:
        return [str(finding).removeprefix("step 0: ") for finding in self.findings.kept]


def test_what_nobody_holds_is_poison_or_what_was_left() -> None:
    checks = Checks(left=[5, 6, 7, NOTHING, NOTHING, 9])
    codes = np.array([5, 66, POISON, POISON, 44, 9])
    is_cached = checks.checks.unheld(claims((5, 0, 9)), codes)
    assert is_cached.tolist() == [True, False, False, False, False, False]
    assert checks.lines == [
        "freed: slot 1: expected poison or token 6, found token 66",
        "freed: slot 4: expected poison, found token 44",
    ]
    assert checks.checks.counts == {"cached": 1, "free": 4}


def test_what_one_has_written_is_no_fault_of_another_who_has_not() -> None:
    checks = Checks()
    codes = np.array([5, 66, 77, 8, POISON])
    entries = ((0, 0, 5), (0, 0, NOTHING), (1, 1, 6), (2, 0, NOTHING), (4, 9, NOTHING), (3, 2, 88))
    holds = checks.checks.held(claims(*entries, num_sources=1), codes)
    assert holds.tolist() == [True] + [False] * 5
    assert checks.lines == [
        "live: slot 1: expected request 2 position 1, found token 66",
        "source: slot 3: expected request 5 position 2, found token 8",
        "unwritten: slot 2, granted for request 3 position 0: expected poison, found token 77",
    ]
    assert checks.checks.counts == {"live": 3, "unwritten": 2}


def test_a_mixture_is_told_by_its_pieces_while_findings_are_kept() -> None:
    checks = Checks()
    checks.checks.held(claims((3, 0, 5)), np.array([0, 0, 0, MIXED]))
    words = "layer 0 key: V of layer 1 of token 7; layer 0 value: poison; "
    words += "layer 1 key: K of layer 2 of token 8; layer 1 value: no token's"
    assert checks.lines[0].endswith(f"found {words}")
    assert checks.looked_at == [(["device"], 3)]
    for _ in range(MAX_KEPT):
        checks.checks.held(claims((3, 0, 5)), np.array([0, 0, 0, MIXED]))
    assert len(checks.looked_at) == len(checks.lines) == MAX_KEPT, (
        "what nobody will see is not read"
    )
    assert checks.findings.num_findings == MAX_KEPT + 1


@pytest.mark.parametrize("wrong", [POISON, MIXED])
def test_the_host_has_what_was_swapped_out(wrong: int) -> None:
    """Of its blocks of two slots 1 and 4 are claimed; the second slot of 4 is wrong."""
    host = torch.zeros(6, 2, SIZE, 1, 1)
    host[1, 0].view(-1)[:] = torch.tensor([11, 12])
    host[4, 0].view(-1)[:] = torch.tensor([13, wrong])
    host[:, 1] = 5 + torch.arange(6).view(6, 1, 1, 1)
    checks = Checks()
    entries = ((9, 3, 14), (8, 2, 13), (2, 0, 11), (3, 1, 12), (3, 1, 12))
    checks.checks.host(claims(*entries), [host])
    (line,) = checks.lines
    assert line.startswith("host: host slot 9: expected request 0 position 3, found ")
    assert checks.checks.counts == {"host": 4}
    keys, values = checks.layer
    assert keys.flatten().tolist() == [11, 12, 13, wrong]
    assert values.flatten().tolist() == [6, 6, 9, 9]
    # The fourth of the slots that were looked at, in the host's memory.
    assert checks.looked_at == ([([checks.layer], 3)] if wrong == MIXED else [])
    assert ("V of layer 1 of token 7" in line) == (wrong == MIXED)


def test_holders_of_a_slot_have_it_for_the_same_position() -> None:
    checks = Checks()
    checks.checks.shared(claims((4, 0, 5), (7, 3, 6), (4, 0, 5), (7, 2, 6), (1, 1, 8)))
    assert checks.lines == [
        "shared: slot 7: expected request 1 position 3, found request 3 position 2"
    ]
    assert checks.checks.counts == {"shared": 2}
