"""Calibration: steps are what the grid says, they are what is timed, and a time limit leaves whole data."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtwin.gpu import torch_ops
from kvtwin.gpu.check import Backend
from kvtwin.gpu.twin import calibrate
from kvtwin.gpu.twin.calibrate import calibrated_cost, measure_steps
from kvtwin.gpu.twin.content import ContentShape
from kvtwin.gpu.twin.grid import GridStep, calibration_grid
from kvtwin.sim.calibration import Samples
from kvtwin.sim.cost import TOTALS, CostModel

SHAPE = ContentShape(1, 2, 2, 16, torch.float16)
ON_TORCH = Backend("torch", torch_ops, "cpu")


def recounted(step: GridStep) -> list[int]:
    """The totals, a query and a key at a time."""
    counts: Counter[str] = Counter(moved_slots=step.moved_slots)
    for first, num in step.chunks:
        counts["num_prefill_tokens"] += num
        counts["prefill_context_slots"] += first + num
        counts["prefill_pairs"] += sum(position + 1 for position in range(first, first + num))
    for context in step.contexts:
        counts["num_decode_tokens"] += 1
        counts["decode_context_slots"] += context
    return [counts[name] for name in TOTALS]


@given(
    max_num_seqs=st.integers(1, 40),
    max_context=st.integers(1, 200),
    budget=st.integers(1, 300),
    max_slots=st.integers(1, 3000),
)
@settings(max_examples=30)
def test_the_grid_keeps_its_limits(
    max_num_seqs: int, max_context: int, budget: int, max_slots: int
) -> None:
    for step in calibration_grid(max_num_seqs, max_context, budget, max_slots):
        assert len(step.contexts) <= max_num_seqs
        assert max((*map(sum, step.chunks), *step.contexts)) <= max_context
        assert sum(num for _, num in step.chunks) + len(step.contexts) <= max(budget, max_num_seqs)
        assert step.num_slots <= max_slots
        assert list(step.totals()) == recounted(step)


def test_the_grid_moves_every_total_apart_from_the_others() -> None:
    """Else coefficients could not be told apart."""
    totals = np.array([step.totals() for step in calibration_grid(64, 512, 2048, 32768)])
    columns = np.column_stack([np.ones(len(totals)), totals / totals.max(axis=0)])
    assert np.linalg.cond(columns) < 100
    assert 60 < len(totals) < 150


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What was executed in timed sections, in order."""
    seen: list[tuple[Any, ...]] = []
    run_step = calibrate.run_step

    def watched(layers: Any, step: Any, ops: Any, out: torch.Tensor) -> None:
        run_step(layers, step, ops, out)
        assert not out.isnan().any()
        contexts = [*step.prefill_lens.tolist(), *step.decode_lens.tolist()]
        seen.append((step.num_prefill_tokens, step.slots.shape[1], sorted(contexts)))
        for tables, lens in (
            (step.prefill_tables[0], step.prefill_lens),
            (step.decode_tables[0], step.decode_lens),
        ):
            owned = [table[: -(-num // 16)] for table, num in zip(tables, lens, strict=True)]
            blocks = torch.cat([*owned, torch.empty(0)]).tolist()
            assert len(set(blocks)) == len(blocks), "sequences share blocks"

    monkeypatch.setattr(calibrate, "run_step", watched)
    return seen


def test_what_is_measured_is_the_step(calls: list[tuple[Any, ...]]) -> None:
    """A prompt of 20 behind 5, and two decodes; then a move beside a decode.

    And a chunk of one token, which goes to the kernel of decodes, beside one of 4.
    """
    steps = [
        GridStep(((5, 20),), (7, 33)),
        GridStep((), (40,), moved_slots=30),
        GridStep(((3, 1), (0, 4)), ()),
    ]
    samples = measure_steps(steps, SHAPE, ON_TORCH, 16, num_repeats=3)
    assert samples is not None
    executed = [(20, 22, [7, 25, 33]), (0, 1, [40]), (4, 5, [4, 4])]
    assert calls == executed * 4  # one to warm up
    assert samples.durations_ns.shape == (3, 3)
    assert samples.totals.tolist() == [list(step.totals()) for step in steps]


@pytest.mark.parametrize(
    ("num_timed", "shape"),
    [(0, None), (3, None), (5, (2, 1)), (6, (3, 1)), (8, (3, 1)), (10, (3, 2))],
)
def test_a_time_limit_leaves_whole_data(
    num_timed: int,
    shape: tuple[int, int] | None,
    monkeypatch: pytest.MonkeyPatch,
    calls: list[tuple[Any, ...]],
) -> None:
    """Three steps: the first three measurements warm up, and the time ends before the one behind `num_timed`."""
    monkeypatch.setattr(calibrate, "monotonic", lambda: float(len(calls)))
    steps = [GridStep((), (num,)) for num in (1, 2, 3)]
    samples = measure_steps(steps, SHAPE, ON_TORCH, 16, num_repeats=4, seconds=num_timed)
    assert (samples and samples.durations_ns.shape) == shape
    if samples is not None:
        assert samples.totals[:, TOTALS.index("decode_context_slots")].tolist() == list(
            range(1, shape[0] + 1)
        )


def test_a_fitted_cost_says_what_it_is() -> None:
    totals = np.array([step.totals() for step in calibration_grid(4, 64, 64, 300)])
    durations_ns = 1000 + totals @ np.array([50, 1, 2, 100, 3, 0])
    cost, fit = calibrated_cost(
        Samples(totals, durations_ns[:, None]),
        SHAPE,
        ON_TORCH,
        model="OPT-13B",
        block_size=8,
        source="kvtwin calibrate",
        device_name="a processor",
        date="2026-01-02",
        versions={"torch": "2"},
    )
    assert cost.calibrated
    assert cost.fit is not None
    assert (cost.fit.model, cost.fit.num_layers, cost.fit.block_size) == ("OPT-13B", 1, 8)
    assert (cost.fit.backend, cost.fit.dtype) == ("torch", "float16")
    assert "in 1 layers of 2 query and 2 KV heads of 16: no projections" in cost.notes[0]
    assert fit.cross_validated.p95 < 1e-6
    assert isinstance(cost, CostModel)
