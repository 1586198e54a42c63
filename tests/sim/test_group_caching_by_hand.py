"""Hits, a copy, a swap and evictions in a pool of eight blocks of two slots, every number derived by hand."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hand_runs import STEP_NS
from random_cases import config_of, trace_of

from kvtwin.sim import PolicySettings, simulate
from kvtwin.sim.vllm_v0.caching import VllmV0PrefixCaching
from kvtwin.sim.vllm_v0.group import Group

PARTS = ("live", "reserved", "internal", "rounding", "cached", "external", "free")
COPY_NS = 150_000
# Three blocks of 262,144 bytes over 31 GB/s, rounded up, and 64 copies for each: about one and a half steps.
TRANSFER_NS = 25_369 + 3 * 64 * COPY_NS

# Request 0: P 5, O 2. Its positions 0 to 5 are tokens 0 to 5 of stream 0, the last one of its answer; three blocks.
# Request 1: P 7, O 4, of which nothing is known: positions 0 to 9.
# Request 2: two samples of P 5 and O 2; the prompt, and the first sample's answer, are those of request 0.
# Request 3: P 7, O 1: it begins as request 2 with its first answer ended.
REQUESTS = [(0, 5, 2), (2 * STEP_NS, 7, 4), (2 * STEP_NS, 5, 2), (10 * STEP_NS, 7, 1)]
CONTENTS = [((0, 0, 6),), (), ((0, 0, 6),), ((0, 0, 7),)]

DECISIONS = [
    # (step, action, row, branch, block, source)
    (0, "grant", 0, 0, 0, -1),
    (0, "grant", 0, 0, 1, -1),
    (0, "grant", 0, 0, 2, -1),
    # Step 1 fills block 2. All three can be found; in line for reuse are 2, 1, 0, behind 3 to 7.
    (1, "free", 0, 0, 0, -1),
    (1, "free", 0, 0, 1, -1),
    (1, "free", 0, 0, 2, -1),
    (2, "grant", 1, 0, 3, -1),
    (2, "grant", 1, 0, 4, -1),
    (2, "grant", 1, 0, 5, -1),
    (2, "grant", 1, 0, 6, -1),
    # Four of five tokens: the fifth gives the next one, and is computed in any case.
    (2, "share", 2, 0, 0, -1),
    (2, "share", 2, 0, 1, -1),
    (2, "grant", 2, 0, 7, -1),
    (2, "share", 2, 1, 0, -1),
    (2, "share", 2, 1, 1, -1),
    (2, "share", 2, 1, 7, -1),
    # Block 2 is left, and two samples want two: the latest request leaves, on its own account.
    (3, "swap_out", 2, 0, 0, 0),
    (3, "swap_out", 2, 0, 1, 1),
    (3, "swap_out", 2, 0, 2, 7),
    # Position 8 of request 1, while blocks 0, 1 and 7 are still on their way: block 2 is evicted.
    (4, "extend", 1, 0, 2, -1),
    # They have left. Blocks 1 and 0 can be found again, 7 had one token and is free.
    (5, "vacate", 2, 0, 0, -1),
    (5, "vacate", 2, 0, 1, -1),
    (5, "vacate", 2, 0, 7, -1),
    # Request 1 ends. In line: 7; 1, 0; 2, 6, 5, 4, 3.
    (5, "free", 1, 0, 3, -1),
    (5, "free", 1, 0, 4, -1),
    (5, "free", 1, 0, 5, -1),
    (5, "free", 1, 0, 6, -1),
    (5, "free", 1, 0, 2, -1),
    # Three new blocks, two of them evicted, and then one for the copy of the block with the fifth token.
    (6, "swap_in", 2, 0, 7, 0),
    (6, "swap_in", 2, 0, 1, 1),
    (6, "swap_in", 2, 0, 0, 2),
    (6, "vacate_host", 2, 0, 0, -1),
    (6, "vacate_host", 2, 0, 1, -1),
    (6, "vacate_host", 2, 0, 2, -1),
    (6, "copy", 2, 0, 2, 0),
    # Both samples end. In line: 6, 5, 4, 3 of request 1; 2; 0, 1, 7.
    (6, "free", 2, 0, 7, -1),
    (6, "free", 2, 0, 1, -1),
    (6, "free", 2, 0, 2, -1),
    (6, "free", 2, 1, 7, -1),
    (6, "free", 2, 1, 1, -1),
    (6, "free", 2, 1, 0, -1),
    # Six of seven tokens: what came back from the host, and the first sample's answer in block 2.
    (7, "share", 3, 0, 7, -1),
    (7, "share", 3, 0, 1, -1),
    (7, "share", 3, 0, 2, -1),
    (7, "grant", 3, 0, 6, -1),
    (7, "free", 3, 0, 7, -1),
    (7, "free", 3, 0, 1, -1),
    (7, "free", 3, 0, 2, -1),
    (7, "free", 3, 0, 6, -1),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("run")
    trace = trace_of(REQUESTS, CONTENTS)
    (chunk,) = trace.chunks
    config = config_of(
        "vllm-v0-prefix-caching",
        num_gpu_blocks_override=8,
        block_size=2,
        max_model_len=20,
        watermark=0.0,
        sample_lengths="equal",
        swap_space=1.0,
        swap_copy_ns=COPY_NS,
        cost=f"constant:{STEP_NS}",
    )
    chunks = (replace(chunk, num_samples=np.array([1, 1, 2, 1])),)
    simulate(replace(trace, chunks=chunks), config, directory, decisions=True, paranoid=True)
    return directory


def test_every_block_goes_where_the_rules_say(directory: Path) -> None:
    names = ("step", "action", "row", "branch", "first", "source")
    columns = pq.read_table(directory / "decisions.parquet").to_pydict()
    assert list(zip(*(columns[name] for name in names), strict=True)) == DECISIONS


def test_requests_end_when_their_last_token_is_out(directory: Path) -> None:
    """Step 6 begins when request 2 has come back, for which nobody else runs."""
    assert STEP_NS < TRANSFER_NS < 2 * STEP_NS
    requests = pq.read_table(directory / "requests.parquet").to_pydict()
    assert requests["num_hit_tokens"] == [0, 0, 4, 6]
    assert requests["num_preemptions"] == [0, 0, 1, 0]
    ends_ns = [2 * STEP_NS, 6 * STEP_NS, 7 * STEP_NS + TRANSFER_NS, 11 * STEP_NS]
    assert requests["finished_ns"] == ends_ns


def test_every_slot_is_in_the_part_that_it_belongs_to(directory: Path) -> None:
    timeline = pq.read_table(directory / "timeline.parquet").to_pylist()
    by_time = {
        (row["start_ns"], row["end_ns"]): [row[f"{part}_slots"] for part in PARTS]
        for row in timeline
    }
    steps = [by_time[step * STEP_NS, (step + 1) * STEP_NS] for step in range(6)]
    assert steps == [
        [0, 6, 0, 0, 0, 0, 10],
        [5, 1, 0, 0, 0, 0, 10],
        # Request 1 has 8 slots; request 2 two blocks that are live at once, and one. Block 2 is cached.
        [4, 8 + 2, 0, 0, 2, 0, 0],
        # On their way: five live tokens, and a slot that will not be written.
        [7 + 5, 1, 1, 0, 2, 0, 0],
        [8 + 5, 2, 1, 0, 0, 0, 0],
        [9, 1, 0, 0, 4, 0, 2],
    ]
    # Coming back, reserved; then live but for the copy and the two last positions.
    back, step = np.array([0, 6, 0, 0, 10, 0, 0]), np.array([5, 3, 0, 0, 8, 0, 0])
    end_ns = 7 * STEP_NS + TRANSFER_NS
    mean = (back * TRANSFER_NS + step * STEP_NS) / (TRANSFER_NS + STEP_NS)
    assert by_time[6 * STEP_NS, end_ns] == pytest.approx(mean.tolist())
    assert by_time[end_ns, 10 * STEP_NS] == [0, 0, 0, 0, 16, 0, 0]
    assert by_time[10 * STEP_NS, 11 * STEP_NS] == [6, 1, 1, 0, 8, 0, 0]


def test_the_summary_adds_up(directory: Path) -> None:
    summary = json.loads((directory / "run.json").read_text())["summary"]
    expected = {
        "num_prefill_tokens": 5 + 7 + 1 + 1,
        "num_decode_tokens": 1 + 3 + 2,
        "hit_tokens": 4 + 6,
        "preemptions": 1,
        "recomputed_tokens": 0,
        "moved_slots": 2,
        "peak_used_share": 1.0,
    }
    assert {name: summary[name] for name in expected} == expected
    swapping = summary["swapping"]
    assert (swapping["num_groups_out"], swapping["num_blocks_out_and_in"]) == (1, 6)
    assert swapping["waited_ns"] == TRANSFER_NS


def test_who_leaves_says_what_others_have_found_of_it() -> None:
    """Blocks of one slot. The first of two samples ends while another request holds two tokens of its answer."""
    policy = VllmV0PrefixCaching(PolicySettings(num_slots=20, max_model_len=20, block_size=1))
    samples = Group(0, 0, 2, (4, 8), False, ((0, 0, 6),))
    assert policy.allocate(samples, policy.find(samples)) == 2
    policy.store(samples, 2)
    for committed in (2, 3, 4):
        assert policy.append(samples, committed) == (2, 0)
        policy.store(samples, committed + 1)
    other = Group(1, 0, 5, (3,), False, ((0, 0, 5),))
    first, second = samples.branches
    found = policy.find(other)
    assert found == first.blocks[:4]
    assert policy.num_held(found) == 4
    policy.allocate(other, found)
    # The prompt stays with the second sample. Of three more blocks the other request has two.
    assert policy.free(samples, first) == (3, 2)
    samples.branches.remove(first)
    assert policy.num_cached_slots() == 1
    assert policy.free(samples, second) == (5, 2)
    assert policy.num_cached_slots() == 4
    policy.check(other.branches)
