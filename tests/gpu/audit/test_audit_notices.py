"""Every check of the audit fires: each fault is planted alone, and the line names what is wrong with numbers."""

import re
from typing import Any

import executor_faults
import manager_faults
import pytest
from executed import audited_execution
from random_cases import config_of, trace_of

from kvtwin.sim import registry
from kvtwin.sim.engine import Engine

# They grow, move, are preempted, wait, and find the prompts of others.
REQUESTS = [(0, 5 + 7 * i % 23, 1 + 11 * i % 17) for i in range(14)]
CONTENTS = [((i % 2, 0, min(request[1], 6)),) for i, request in enumerate(REQUESTS)]
TRACE = trace_of(REQUESTS, CONTENTS)


def config(policy: str) -> Any:
    return config_of(
        policy,
        num_gpu_blocks_override=24,
        block_size=4,
        max_model_len=40,
        max_num_seqs=2 if policy == "slots" else 6,
        max_num_batched_tokens=16,
        growth_tokens=3,
        compaction=True,
        watermark=0.1,
    )


def groups(policy: str = "vllm-v0", **fields: Any) -> Any:
    """Samples or beams that share blocks, and transfers about as long as a step."""
    return config_of(
        policy,
        num_gpu_blocks_override=40,
        block_size=4,
        max_model_len=40,
        max_num_seqs=12,
        max_num_batched_tokens=32,
        cost="constant:10000000",
        **fields,
    )


def check_fires(settings: Any, check: str, line: str) -> None:
    """The check is among those that fire, and a line of it reads like this."""
    findings = audited_execution(TRACE, settings).findings
    assert findings.counts[check], f"only {dict(findings.counts)}"
    lines = [str(finding) for finding in findings.kept if finding.check == check]
    assert any(re.search(line, text) for text in lines), lines[:5]


POLICIES = ("static", "orca-pow2", "orca-oracle", "contiguous", "paged", "slots")


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_is_found_without_a_fault(policy: str) -> None:
    audit = audited_execution(TRACE, config(policy))
    assert [str(finding) for finding in audit.findings.kept] == []
    assert audit.counts["live"] > 1000, "there was something to be found"


@pytest.mark.parametrize(
    ("fault", "policy", "check", "line"),
    [
        ("wrong_slot_mapping", "paged", "live", "slot 1: expected request 0 position 1, found req"),
        ("wrong_slot_mapping", "slots", "unwritten", "granted for request .*: expected poison"),
        (
            "off_by_one_at_a_block_edge",
            "paged",
            "live",
            "slot 2: .* position 2, found .* position 3",
        ),
        ("swapped_ids", "paged", "table", "entry 0 of request 0: expected 0, found 1"),
        ("swapped_ids", "paged", "live", r"slot 0: expected request 0 position 0, found"),
        ("read_behind_the_table", "paged", "table", r"entry 2 of .* expected nothing, found \d+"),
        ("stale_table_row", "paged", "table", r"entry \d of request \d+: expected \d+, found \d+"),
        ("stale_table_row", "paged", "live", r"slot \d+: expected request"),
        ("missed_move", "contiguous", "live", "slot .* position 0, found poison"),
        ("compaction_overlap", "contiguous", "live", r"expected request \d .*, found request \d"),
        ("moves_in_reverse_order", "contiguous", "live", r"slot \d+: expected request"),
        (
            "vacated_too_early",
            "contiguous",
            "source",
            r"expected request 1 position 0, found poison",
        ),
        ("skipped_poison_at_free", "paged", "freed", "slot .*: expected poison, found request"),
        (
            "skipped_poison_at_free",
            "contiguous",
            "freed",
            "slot .*: expected poison, found request",
        ),
        ("skipped_poison_everywhere", "slots", "unwritten", "expected poison, found request"),
        ("skipped_poison_everywhere", "vllm-v1", "unwritten", "expected poison, found request"),
        (
            "poisoned_cache",
            "vllm-v1",
            "parts",
            r"cached: expected \d+ slots by the recorder, found 0",
        ),
        ("poisoned_cache", "slots", "parts", "cached: expected 6 slots by the recorder, found 0"),
        (
            "write_past_the_end",
            "paged",
            "unwritten",
            "expected poison, found layer 0 key: no token",
        ),
        ("keys_for_values", "paged", "live", "layer 0 value: K of layer 0 of request 0 position 0"),
        ("wrong_layer", "paged", "live", "layer 0 key: K of layer 1 of request 0 position 0"),
        ("wrong_head", "paged", "live", "layer 1 key: K of .*; layer 1 value: no token's"),
        ("wrong_position", "paged", "live", "expected request 0 position 0, found .* position 1"),
        ("one_wrong_bit", "orca-oracle", "live", "layer 1 value: no token's"),
        (
            "lost_store",
            "static",
            "live",
            r"slot \d+: expected request \d position \d+, found poison",
        ),
    ],
)
def test_a_fault_of_the_executor_is_caught(
    fault: str, policy: str, check: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    getattr(executor_faults, fault)(monkeypatch)
    check_fires(config(policy), check, line)


@pytest.mark.parametrize(
    ("fault", "policy", "check", "line"),
    [
        (
            "manager_faults:GrantedTwice",
            "paged",
            "double grant",
            r"unit \d+ free, found held by req",
        ),
        (
            "manager_faults:GrantedTwice",
            "paged",
            "shared",
            r"slot \d+: expected request .* position",
        ),
        (
            "manager_faults:FreedWhileItRuns",
            "paged",
            "room",
            "request 1: expected at most 12, found 13",
        ),
        ("manager_faults:FreedWhileItRuns", "paged", "live", "expected request 1 position"),
        (
            "manager_faults:AnotherBlockFreed",
            "paged",
            "not held",
            r"1 units from \d+, found \d+ oth",
        ),
        (
            "faulty_policies:LeakedBlock",
            "paged",
            "leak",
            "nothing held by who has finished, found 1",
        ),
        ("faulty_policies:KeptForEver", "static", "leak", "request 0: expected nothing held"),
        (
            "manager_faults:PlaceKept",
            "static",
            "leak",
            "request 0: .* by who has finished, found 40",
        ),
        ("faulty_policies:WrongCount", "paged", "parts", r"free: expected 77 slots .*, found 76"),
        (
            "faulty_policies:GrantsMoreThanItHas",
            "paged",
            "parts",
            r"rounding: expected \d+ .*, found 0",
        ),
        (
            "manager_faults:OverlappingHalves",
            "orca-oracle",
            "double grant",
            "request 2: expected unit",
        ),
        ("manager_faults:SmallerThanGranted", "orca-oracle", "parts", "rounding: expected 0"),
        ("manager_faults:CompactedTooFar", "contiguous", "shared", r"slot \d+: expected request"),
        (
            "manager_faults:NothingExternal",
            "contiguous",
            "parts",
            r"external: expected 0 .*, found \d+",
        ),
        ("manager_faults:WatermarkForgotten", "paged", "parts", "external: expected 0 .*, found 8"),
        ("manager_faults:OneTokenTooMany", "slots", "live", r"expected request \d+ position"),
        ("manager_faults:ForgottenCache", "slots", "live", r"position \d+, found poison"),
    ],
)
def test_a_fault_of_the_manager_is_caught(
    fault: str, policy: str, check: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Under the name of the policy that it breaks, whose rules the audit knows.
    monkeypatch.setattr(registry, "POLICIES", {**registry.POLICIES, policy: fault})
    check_fires(config(policy), check, line)


@pytest.mark.parametrize(
    ("fault", "check", "line"),
    [
        ("work_past_the_end", "past the end", "request 0: expected at most 5, found 6"),
        ("work_again", "order", "request 1: expected position 11, found 10"),
    ],
)
def test_a_fault_of_the_engine_is_caught(
    fault: str, check: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "work", getattr(manager_faults, fault)(Engine.work))
    check_fires(config("paged"), check, line)


@pytest.mark.parametrize(
    ("fault", "fields", "check", "line"),
    [
        (
            "lost_copy_on_write",
            {"num_samples": 3},
            "live",
            "request 0 branch 1 position 4, found poison",
        ),
        (
            "swapped_to_the_wrong_host_block",
            {"num_samples": 3},
            "host",
            r"host slot \d+: expected req",
        ),
        ("swapped_from_the_wrong_host_block", {"beam_width": 3}, "live", r"expected request \d+"),
        ("source_of_a_swap_poisoned", {"num_samples": 3}, "source", ", found poison"),
        (
            "manager_faults:WrittenInPlace",
            {"num_samples": 3},
            "live",
            "branch 1 position 5, found request 0 branch 2",
        ),
        ("manager_faults:ForkOfTheWrongBeam", {"beam_width": 3}, "live", r"expected request \d+"),
    ],
)
def test_a_fault_in_sharing_or_swapping_is_caught(
    fault: str,
    fields: dict[str, Any],
    check: str,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if fault.startswith("manager_faults:"):
        monkeypatch.setattr(registry, "POLICIES", {**registry.POLICIES, "vllm-v0": fault})
    else:
        getattr(executor_faults, fault)(monkeypatch)
    check_fires(groups(**fields), check, line)


@pytest.mark.parametrize(
    ("fault", "check", "line"),
    [
        ("poisoned_cache", "parts", r"cached: expected \d+ slots by the recorder, found"),
        ("manager_faults:FoundInAnotherPrompt", "live", r"request \d+ position 0, found request"),
    ],
)
def test_a_fault_in_finding_is_caught(
    fault: str, check: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = "vllm-v0-prefix-caching"
    if fault.startswith("manager_faults:"):
        monkeypatch.setattr(registry, "POLICIES", {**registry.POLICIES, policy: fault})
    else:
        getattr(executor_faults, fault)(monkeypatch)
    check_fires(groups(policy, num_samples=2), check, line)
