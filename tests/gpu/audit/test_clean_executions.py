"""The device executor is clean under every policy, and a second, naive device agrees with it slot for slot."""

from dataclasses import replace
from typing import Any

import pytest
from executed import audited_execution
from naive_device import audited_run
from random_cases import config_of, trace_of

from kvtwin.sim import policy_names

# As many as a pool of 96 slots cannot hold: they wait, grow, move and are preempted.
REQUESTS = [(0, 5 + 7 * i % 23, 1 + 11 * i % 17) for i in range(14)]
CONTENTS = [((i % 2, 0, min(request[1], 6 + i)),) for i, request in enumerate(REQUESTS)]
TRACE = trace_of(REQUESTS, CONTENTS)
# What each kind of slot must have been seen of, so that a clean audit says something.
SEEN = {
    "slots": {"cached"},
    "vllm-v1": {"cached", "shared"},
    "vllm-v0-prefix-caching": {"cached", "shared"},
}


def config(policy: str, **fields: Any) -> Any:
    settings = {
        "num_gpu_blocks_override": 24,
        "block_size": 4,
        "max_model_len": 40,
        "max_num_seqs": 2 if policy == "slots" else 6,
        "max_num_batched_tokens": 16,
        "growth_tokens": 3,
        "cost": "constant:1000",
    }
    return config_of(policy, **(settings | fields))


def check_clean(settings: Any, seen: set[str]) -> None:
    """Nothing is found on either device, both counted the same, and there was something to find."""
    executed, naive = audited_execution(TRACE, settings), audited_run(TRACE, settings)
    for audit in (executed, naive):
        assert [str(finding) for finding in audit.findings.kept] == []
    counts = {name: num for name, num in executed.counts.items() if name != "tables"}
    assert counts == {name: num for name, num in naive.counts.items() if name != "tables"}
    assert {name for name in seen if counts[name] > 0} == seen
    assert counts["num_instants"] > 30


@pytest.mark.parametrize("policy", [name for name in policy_names() if name != "no-cache"])
def test_every_policy_is_clean(policy: str) -> None:
    check_clean(config(policy), SEEN.get(policy, set()) | {"live", "unwritten", "free"})


@pytest.mark.parametrize("fit", ["first", "best"])
def test_compaction_is_clean(fit: str) -> None:
    check_clean(config("contiguous", compaction=True, fit=fit), {"live", "unwritten", "free"})


@pytest.mark.parametrize("policy", ["vllm-v0", "vllm-v0-prefix-caching"])
@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({"num_samples": 3}, {"shared", "host"}),
        ({"num_samples": 3, "preemption_mode": "recompute"}, {"shared"}),
        ({"beam_width": 3, "preemption_mode": "swap"}, {"shared", "host"}),
        ({"beam_width": 4, "preemption_mode": "recompute"}, {"shared"}),
    ],
)
def test_forks_copies_and_swaps_are_clean(
    policy: str, fields: dict[str, Any], seen: set[str]
) -> None:
    """Steps are as long as transfers, so that some last longer than a step."""
    settings = config(
        policy,
        num_gpu_blocks_override=40 if policy == "vllm-v0" else 32,
        max_num_seqs=12,
        max_num_batched_tokens=32,
        cost="constant:10000000",
    )
    cached = set() if policy == "vllm-v0" else {"cached"}
    check_clean(replace(settings, **fields), seen | cached | {"live", "unwritten"})
