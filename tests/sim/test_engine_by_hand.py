"""Where the pool is, step by step, in runs computed by hand.

Parts are (live, reserved, internal, rounding, external, free) between the plan and the commit of each
step. P is the prompt, O the output, E = P + O - 1.
"""

from pathlib import Path

import pytest
from hand_runs import STEP_NS, run


def test_paged_preempts_the_latest_and_recomputes(tmp_path: Path) -> None:
    """Four blocks of 2. A: P 3, O 4, E 6. B: P 3, O 3, E 5."""
    result = run("paged", [(0, 3, 4), (0, 3, 3)], tmp_path, num_slots=8, block_size=2)
    assert result.parts == [
        (0, 8, 0, 0, 0, 0),  # two blocks each, nothing committed; 4 below E of both
        (6, 2, 0, 0, 0, 0),  # 3 tokens each
        # A has 4 tokens in 4 slots and asks for a block: B is preempted, A takes one of its two.
        (4, 2, 0, 0, 0, 2),
        (5, 1, 0, 0, 0, 2),  # B waits: 3 + 2 known tokens need 3 blocks. No free one is useless.
        (0, 5, 1, 0, 0, 2),  # A has ended. B computes 5 tokens in 3 blocks, of which E fills 5.
    ]
    assert result.decisions == [
        (0, "grant", 0, 0, 1),
        (0, "grant", 0, 1, 1),
        (0, "grant", 1, 2, 1),
        (0, "grant", 1, 3, 1),
        (2, "free", 1, 2, 1),
        (2, "free", 1, 3, 1),
        (2, "extend", 0, 3, 1),  # the block freed last is taken first
        (3, "free", 0, 0, 1),
        (3, "free", 0, 1, 1),
        (3, "free", 0, 3, 1),
        (4, "grant", 1, 3, 1),
        (4, "grant", 1, 1, 1),
        (4, "grant", 1, 0, 1),
        (4, "free", 1, 3, 1),
        (4, "free", 1, 1, 1),
        (4, "free", 1, 0, 1),
    ]
    summary = result.summary
    assert (summary["preemptions"], summary["num_preempted_requests"]) == (1, 1)
    assert [row["num_preemptions"] for row in result.requests] == [0, 1]
    assert summary["recomputed_tokens"] == 4  # what B had committed
    assert summary["num_prefill_tokens"] == 3 + 3 + 5
    assert summary["num_decode_tokens"] == 2 + 1 + 1
    assert result.finished_steps == [4, 5]
    # B's tokens come at the ends of steps 0, 1 and 4: gaps of 1 and 3 steps; A has three of 1.
    step_ms = STEP_NS / 1e6
    assert summary["itl_ms"]["mean"] == pytest.approx(step_ms * (3 * 1 + 1 + 3) / 5)
    assert summary["tpot_ms"]["mean"] == pytest.approx(step_ms * (1 + (5 - 1) / 2) / 2)
    assert summary["ttft_ms"] == {"mean": step_ms, "p50": step_ms, "p99": step_ms}
    assert summary["queue_ms"]["mean"] == 0, "queue time ends at the first admission"


@pytest.mark.parametrize(
    ("policy", "asked", "granted"),
    [
        ("orca-oracle", 3 + 3, 8),
        ("orca-pow2", 3 + 4, 8),  # 3 output tokens are rounded up to 4
        ("orca-max", 12, 16),
    ],
)
def test_orca_parts_of_one_request(policy: str, asked: int, granted: int, tmp_path: Path) -> None:
    """P 3, O 3: 5 tokens are ever committed. n - E is internal, 2^k - n is rounding."""
    result = run(policy, [(0, 3, 3)], tmp_path, num_slots=16, max_model_len=12)
    assert result.parts == [
        (live, 5 - live, asked - 5, granted - asked, 0, 16 - granted) for live in (0, 3, 4)
    ]


def test_orca_chunks_too_short_for_the_head_are_external(tmp_path: Path) -> None:
    """A pool of 26 is 16 + 8 + 2. Requests of 7 + 2 = 9 need 16, so only one runs at a time."""
    result = run("orca-oracle", [(0, 7, 2), (0, 7, 2)], tmp_path, num_slots=26, max_model_len=20)
    assert result.parts == [
        (0, 8, 1, 7, 10, 0),
        (7, 1, 1, 7, 10, 0),
        (0, 8, 1, 7, 0, 10),  # nobody waits any more
        (7, 1, 1, 7, 0, 10),
    ]
    assert result.summary["loaded_end_ns"] == 2 * STEP_NS
    assert result.summary["shares"]["external"] == 10 / 26
    assert result.summary["shares_whole_run"]["external"] == pytest.approx(10 / 26 / 2)
    # The 8 and the 2 slots lie side by side.
    assert [row["largest_free_run_slots"] for row in result.timeline] == [10] * 4


def test_a_finished_member_of_a_static_batch_is_internal(tmp_path: Path) -> None:
    """Places of 8 in a pool of 20: two and a rest of 4. A: P 2, O 1. B: P 2, O 3. C: P 2, O 2."""
    requests = [(0, 2, 1), (0, 2, 3), (0, 2, 2)]
    result = run("static", requests, tmp_path, num_slots=20, max_model_len=8)
    assert result.parts == [
        (0, 2 + 4, 16 - 6, 0, 4, 0),  # E is 2 and 4; C finds no place, the rest is no use to it
        (2, 2, 12, 0, 4, 0),  # A has ended, its place is B's batch's until B ends
        (3, 1, 12, 0, 4, 0),
        (0, 3, 5, 0, 0, 12),  # C alone
        (2, 1, 5, 0, 0, 12),
    ]
    assert [row["num_running"] for row in result.timeline] == [2, 1, 1, 1, 1]
    assert result.finished_steps == [1, 3, 5]
    # Iteration-level, C takes A's place at once.
    result = run("static-iteration", requests, tmp_path, num_slots=20, max_model_len=8)
    assert result.parts == [
        (0, 6, 10, 0, 4, 0),
        (2, 2 + 3, 16 - 7, 0, 0, 4),
        (3 + 2, 1 + 1, 16 - 7, 0, 0, 4),
    ]
    assert result.finished_steps == [1, 3, 3]


def test_contiguous_grows_in_place(tmp_path: Path) -> None:
    """P 2, O 4, E 5, by 2 slots."""
    result = run("contiguous", [(0, 2, 4)], tmp_path, num_slots=8, growth_tokens=2)
    assert result.parts == [
        (0, 2, 0, 0, 0, 6),
        (2, 2, 0, 0, 0, 4),
        (3, 1, 0, 0, 0, 4),
        (4, 1, 1, 0, 0, 2),  # 6 slots, of which the last will not be written
    ]
    assert result.decisions == [
        (0, "grant", 0, 0, 2),
        (1, "extend", 0, 2, 2),
        (3, "extend", 0, 4, 2),
        (3, "free", 0, 0, 6),
    ]


def test_contiguous_moves_and_preempts(tmp_path: Path) -> None:
    """Two requests of P 2, O 3, E 4, by 2 slots, in 8."""
    result = run("contiguous", [(0, 2, 3), (0, 2, 3)], tmp_path, num_slots=8, growth_tokens=2)
    assert result.parts == [
        (0, 4, 0, 0, 0, 4),
        # B lies behind A, so A moves to [4, 8): its source stays live, its target is reserved. B
        # finds nothing and is preempted, which leaves its 2 slots free.
        (2, 4, 0, 0, 0, 2),
        (3, 1 + 3, 0, 0, 0, 1),  # B is back with 3 known tokens at [0, 3)
        (3, 1, 1, 0, 0, 3),  # A has ended; B has grown to 5 slots, E is 4
    ]
    assert result.decisions == [
        (0, "grant", 0, 0, 2),
        (0, "grant", 1, 2, 2),
        (1, "move", 0, 4, 4),
        (1, "free", 1, 2, 2),
        (1, "vacate", 0, 0, 2),
        (2, "grant", 1, 0, 3),
        (2, "free", 0, 4, 4),
        (3, "extend", 1, 3, 2),
        (3, "free", 1, 0, 5),
    ]
    assert (result.summary["moved_slots"], result.summary["recomputed_tokens"]) == (2, 2)


def test_contiguous_compacts(tmp_path: Path) -> None:
    """A and C: P 2, O 3, E 4; B between them ends at once. By 3 slots, in 10."""
    requests = [(0, 2, 3), (0, 2, 1), (0, 2, 3)]
    fields = {"num_slots": 10, "growth_tokens": 3}
    result = run("contiguous", requests, tmp_path, compaction=True, **fields)
    assert result.parts == [
        (0, 6, 0, 0, 0, 4),
        # Free are [2, 4) and [6, 10). A needs 3 behind it or 5 elsewhere: C makes way by one slot.
        (4, 4, 2, 0, 0, 0),
        (6, 2, 2, 0, 0, 0),
    ]
    assert [decision for decision in result.decisions if decision[0] == 1] == [
        (1, "move", 2, 5, 2),
        (1, "extend", 0, 2, 3),
        (1, "extend", 2, 7, 3),
    ]
    assert (result.summary["moved_slots"], result.summary["preemptions"]) == (2, 0)
    # Without compaction, C makes way altogether. It comes back behind A, at [5, 8), where it cannot
    # grow, nor move with A's slots in front of it: alone in the pool, it preempts itself.
    result = run("contiguous", requests, tmp_path, **fields)
    assert [decision for decision in result.decisions if decision[0] in (1, 2, 3)] == [
        (1, "free", 2, 4, 2),
        (1, "extend", 0, 2, 3),
        (2, "grant", 2, 5, 3),
        (2, "free", 0, 0, 5),
        (3, "free", 2, 5, 3),
    ]
    assert result.parts[3] == (0, 0, 0, 0, 0, 10), "nothing runs in the step of the preemption"
    assert (result.summary["preemptions"], result.summary["num_preempted_requests"]) == (2, 1)
    assert result.finished_steps == [3, 1, 5]


def test_compaction_packs_over_what_an_earlier_move_has_left(tmp_path: Path) -> None:
    """As above, in 11: A moves to [6, 11) first, and its two slots count for C's growth."""
    requests = [(0, 2, 3), (0, 2, 1), (0, 2, 3)]
    fields = {"growth_tokens": 3, "compaction": True}
    result = run("contiguous", requests, tmp_path, num_slots=11, **fields)
    assert [decision for decision in result.decisions if decision[0] == 1] == [
        (1, "move", 0, 6, 5),
        (1, "move", 2, 0, 2),  # onto what A has been copied away from by now
        (1, "move", 0, 5, 5),
        (1, "extend", 2, 2, 3),
    ]
    assert result.parts[1] == (4, 4, 2, 0, 0, 1)
    assert (result.summary["moved_slots"], result.summary["preemptions"]) == (2 + 2 + 5, 0)


def test_a_watermark_keeps_blocks_from_the_head(tmp_path: Path) -> None:
    """Ten blocks of 1, int(0.39 x 10) = 3 held back. A: P 4, O 4. B: P 4, O 1."""
    result = run("paged", [(0, 4, 4), (0, 4, 1)], tmp_path, num_slots=10, watermark=0.39)
    assert result.parts == [
        (0, 4, 0, 0, 3, 3),  # B wants 4 + 3 of 6 blocks
        (4, 1, 0, 0, 3, 2),  # A grows into what is held back from admissions
        (5, 1, 0, 0, 3, 1),
        (6, 1, 0, 0, 3, 0),
        (0, 4, 0, 0, 0, 6),
    ]


def test_prompts_are_cut_to_the_budget(tmp_path: Path) -> None:
    """P 5, O 2 by 2 tokens a step; B: P 2, O 1 gets what is left of the third step."""
    requests, fields = [(0, 5, 2), (0, 2, 1)], {"max_num_batched_tokens": 2, "max_num_seqs": 2}
    result = run("paged", requests, tmp_path, num_slots=20, **fields, admission="step")
    assert [row["num_prefill_tokens"] for row in result.timeline] == [2, 2, 1 + 1, 1]
    assert [row["num_decode_tokens"] for row in result.timeline] == [0, 0, 0, 1]
    assert result.parts == [
        (0, 2, 0, 0, 0, 18),
        (2, 2, 0, 0, 0, 16),
        (4, 1 + 1, 0, 0, 0, 14),
        (5 + 1, 1 + 1, 0, 0, 0, 12),  # A decodes, B computes its second token
    ]
    # Reservations compute prompts whole, whatever the budget.
    result = run("orca-oracle", requests, tmp_path, num_slots=20, **fields)
    assert [row["num_prefill_tokens"] for row in result.timeline] == [7, 0]


def test_without_a_cache_every_prefix_is_computed_again(tmp_path: Path) -> None:
    """P 3, O 3: 3, 4 and 5 tokens. Nothing of the pool is ever used."""
    result = run("no-cache", [(0, 3, 3)], tmp_path, num_slots=20)
    assert [row["num_prefill_tokens"] for row in result.timeline] == [3, 4, 5]
    assert result.parts == [(0, 0, 0, 0, 0, 20)] * 3
    assert result.summary["num_decode_tokens"] == 0
    assert result.summary["recomputed_tokens"] == 3 + 4


@pytest.mark.parametrize(
    ("block_size", "prompt", "output", "parts"),
    [
        (1, 1, 1, [(0, 1, 0, 0, 0, 15)]),  # the shortest request: E = 1
        (4, 1, 1, [(0, 1, 3, 0, 0, 12)]),
        (4, 4, 1, [(0, 4, 0, 0, 0, 12)]),  # exactly a block
        # E = 8 fills two blocks; the second one comes with the first decode.
        (4, 4, 5, [(0, 4, 0, 0, 0, 12)] + [(live, 8 - live, 0, 0, 0, 8) for live in (4, 5, 6, 7)]),
        (1, 2, 3, [(0, 2, 0, 0, 0, 14), (2, 1, 0, 0, 0, 13), (3, 1, 0, 0, 0, 12)]),
        (16, 15, 1, [(0, 15, 1, 0, 0, 0)]),  # the longest prompt below max_model_len
    ],
)
def test_paged_edges(
    block_size: int, prompt: int, output: int, parts: list[tuple[int, ...]], tmp_path: Path
) -> None:
    result = run(
        "paged",
        [(0, prompt, output)],
        tmp_path,
        num_slots=16,
        block_size=block_size,
        max_model_len=16,
    )
    assert result.parts == parts
    assert result.summary["num_steps"] == output, "each step gives a token"
