"""What a policy says that it reads of the configuration, against runs with and without."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_cases import config_of, run_files, trace_of

from kvtwin.sim import find_policy, policy_names, simulate
from kvtwin.sim.policies.policy import POLICY_FIELDS

OTHERWISE: dict[str, Any] = {
    "admission": "step",
    "watermark": 0.3,
    "growth_tokens": 3,
    "fit": "best",
    "compaction": True,
    "preemption_mode": "swap",
    "swap_space": 0.0,
    "swap_copy_ns": 10**9,
    "scheduling_policy": "priority",
    "enable_chunked_prefill": False,
    "long_prefill_token_threshold": 5,
    "async_scheduling": True,
    "free_order": "back",
}


def files(policy: str, directory: Path, **fields: Any) -> dict[str, bytes]:
    """Of a crowded run of few requests of several sizes; without its configuration."""
    requests = [(row // 3, 5 + 7 * row % 19, 3 + 5 * row % 23) for row in range(24)]
    pieces = [((row % 3, 0, prompt + output),) for row, (_, prompt, output) in enumerate(requests)]
    config = config_of(
        policy,
        **{
            "block_size": 2,
            "num_gpu_blocks_override": 80,
            "max_model_len": 40,
            "max_num_seqs": 12,
            "max_num_batched_tokens": 40,
            "num_samples": 2,
            **fields,
        },
    )
    trace = trace_of(requests, pieces)
    (chunk,) = trace.chunks
    trace = replace(trace, chunks=(replace(chunk, priority=np.arange(24) * 5 % 7),))
    simulate(trace, config, directory, decisions=True, snapshots=True)
    found = run_files(directory)
    run = json.loads(found.pop("run.json"))
    return found | {"summary": json.dumps(run["summary"]).encode()}


@pytest.mark.parametrize("policy", policy_names())
def test_nothing_else_is_read(policy: str, tmp_path: Path) -> None:
    options = find_policy(policy).options
    assert options is not None
    assert options <= set(POLICY_FIELDS)
    assert OTHERWISE.keys() == set(POLICY_FIELDS)
    usual = files(policy, tmp_path / "usual")
    for name in sorted(set(POLICY_FIELDS) - options):
        assert files(policy, tmp_path / name, **{name: OTHERWISE[name]}) == usual, name


@pytest.mark.parametrize("name", sorted(POLICY_FIELDS))
def test_some_policy_reads_it(name: str, tmp_path: Path) -> None:
    readers = [p for p in policy_names() if name in (find_policy(p).options or ())]
    assert any(
        files(policy, tmp_path / policy, **{name: OTHERWISE[name]})
        != files(policy, tmp_path / f"{policy} as usual")
        for policy in readers
    ), readers
