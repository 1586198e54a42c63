"""Groups in tiny pools, with and without prefix caching: see `group_machine.py`."""

from collections import Counter

import pytest
from example_counts import examples
from group_machine import GroupMachine
from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from kvtwin.sim.vllm_v0.caching import VllmV0PrefixCaching
from kvtwin.sim.vllm_v0.policy import VllmV0

POLICIES = {"plain": VllmV0, "caching": VllmV0PrefixCaching}
SEEN = {"fork", "copy", "share", "swap_out", "swap_in", "free", "restore", "recompute"}
FOUND = {"hit", "found", "evict"}
# What INV-2, INV-3 and INV-8 have to hold under, all together.
MIX = ("fork", "copy", "swap_out", "swap_in", "recompute", "hit", "evict")


@pytest.mark.parametrize("policy", POLICIES)
def test_groups_of_any_kind(policy: str) -> None:
    seen: Counter[str] = Counter()
    fields = {"policy_type": POLICIES[policy], "seen": seen}
    run_state_machine_as_test(
        type("Machine", (GroupMachine,), fields),
        settings=settings(max_examples=examples(100), stateful_step_count=40),
    )
    assert set(seen) >= SEEN | (FOUND if policy == "caching" else set()), seen
    assert policy == "caching" or not FOUND & set(+seen)


def test_the_machine_mixes_forks_copies_swaps_preemption_and_eviction() -> None:
    """With this seed: each of them often, and all of them in one pool more than once."""
    total: Counter[str] = Counter()
    num_with_all = 0

    class Machine(GroupMachine):
        policy_type = VllmV0PrefixCaching

        def __init__(self) -> None:
            super().__init__()
            self.seen = Counter()

        def teardown(self) -> None:
            nonlocal num_with_all
            super().teardown()
            total.update(self.seen)
            num_with_all += all(self.seen[action] for action in MIX)

    run_state_machine_as_test(
        seed(3)(Machine),
        settings=settings(
            max_examples=40, stateful_step_count=100, derandomize=False, phases=[Phase.generate]
        ),
    )
    assert min(total[action] for action in MIX) >= 10, total
    assert num_with_all >= 3
