"""Which outputs of a step are looked at, and what is said of wrong ones, on steps made by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from twin_cases import SHAPE, make_trace

from kvtwin.gpu.check.reference import attention
from kvtwin.gpu.twin.batch import make_batch
from kvtwin.gpu.twin.content import TokenContent, TokenIds
from kvtwin.gpu.twin.executor import ExecutedStep
from kvtwin.gpu.twin.outputs import MAX_FINDINGS, Output, OutputCheck, largest_difference
from kvtwin.sim.decisions import Decisions

TRACE = make_trace(0, 8)
Work = tuple[int, int, int]  # row, first position, number of tokens


def check_of(rows: set[int], every_steps: int = 1000) -> tuple[OutputCheck, Decisions]:
    log = Decisions()
    executor: Any = SimpleNamespace(heirs=set())
    return OutputCheck(TRACE, executor, SHAPE, log, rows, every_steps), log


def step_of(number: int, *work: Work) -> ExecutedStep:
    """A step with right outputs: [num_layers, num_tokens, num_heads, head_dim]."""
    content, ids = TokenContent(SHAPE, "cpu"), TokenIds(TRACE)
    outs, of_tokens = [], []
    for row, first, num in work:
        own = torch.from_numpy(ids.of(row, 0, first + num))
        of_tokens.append(own[first:].numpy())
        query, key, value = (content.of(own, kind).double() for kind in ("query", "key", "value"))
        scale = SHAPE.head_dim**-0.5
        layers = zip(query[:, first:].numpy(), key.numpy(), value.numpy(), strict=True)
        outs.append(torch.tensor(np.stack([attention(*layer, scale=scale) for layer in layers])))
    firsts, nums = (np.array([item[place] for item in work]) for place in (1, 2))
    tables = np.zeros((1, len(work), 20), dtype=np.int32)
    batch = make_batch(np.concatenate(of_tokens), tables, firsts, nums, 4, int((nums > 1).sum()))
    plan: Any = None
    out = torch.cat(outs, dim=1).to(SHAPE.dtype)
    return ExecutedStep(number, plan, [(row, 0) for row, _, _ in work], batch, out)


def test_a_nan_in_any_layer_is_told_with_its_token() -> None:
    """Tokens 0 to 2 are positions 4 to 6 of request 5, 3 is position 9 of 2, and 4 is position 0 of 7."""
    for layer, token, where in ((0, 1, (5, 5)), (1, 2, (5, 6)), (1, 3, (2, 9)), (0, 4, (7, 0))):
        check, _ = check_of(set())
        step = step_of(3, (5, 4, 3), (2, 9, 1), (7, 0, 1))
        step.out[layer, token, -1, -1] = torch.nan
        check.after_step(step)
        assert check.findings == [f"step 3, request {where[0]} position {where[1]}: NaN"]
        assert (check.num_nan, check.num_outputs, check.num_compared) == (1, 5, 0)


def test_one_nan_stays_the_worst_whatever_follows() -> None:
    check, _ = check_of({2, 5})
    check.after_step(step_of(1, (2, 9, 1)))
    assert 0 < check.worst_share < 1
    wrong = step_of(2, (5, 4, 1))
    wrong.out[0, 0, 0, 0] = torch.nan
    check.after_step(wrong)
    assert "attention is nan from float64" in check.findings[-1]
    check.after_step(step_of(3, (2, 10, 1)))
    assert np.isnan(check.worst_share)
    assert check.num_compared == 3


def test_a_wrong_output_is_told_by_layer_and_no_more_than_so_many() -> None:
    check, _ = check_of({2})
    for number in range(1, MAX_FINDINGS):
        wrong = step_of(number, (2, 8 + number, 1), (4, 3, 1))
        wrong.out[:] += 0.5
        check.after_step(wrong)
    assert len(check.findings) == MAX_FINDINGS < SHAPE.num_layers * check.num_compared
    assert check.num_compared == MAX_FINDINGS - 1
    assert check.worst_share > 1
    for layer, line in enumerate(check.findings[:2]):
        assert line.startswith(f"step 1, request 2 position 9, layer {layer}: attention is 0.5")


def test_of_every_so_many_steps_one_output_is_compared() -> None:
    check, _ = check_of(set(), every_steps=3)
    for number, num_compared in ((0, 1), (1, 1), (2, 1), (3, 2), (4, 2), (6, 3)):
        check.after_step(step_of(number, (2, 9, 1), (5, 4, 1), (6, 1, 1)))
        assert check.num_compared == num_compared
    assert not check.samples


def test_outputs_are_kept_by_the_tokens_that_they_see() -> None:
    check, _ = check_of({2, 5})
    for position in (9, 10, 9):
        check.after_step(step_of(1, (2, position, 1), (4, position, 1)))
    assert (len(check.samples), check.num_compared) == (2, 3)


@pytest.mark.parametrize("action", ["move", "copy", "share", "swap_in"])
def test_what_was_carried_is_compared_when_it_next_computes_and_once(action: str) -> None:
    check, log = check_of(set())
    work = ((2, 9, 1), (5, 4, 1), (6, 1, 1))
    log.add(action, 5, 0, 1)
    log.add(action, 6, 0, 1)
    log.add("grant", 2, 0, 1)
    check.after_step(step_of(1, work[0]))
    assert check.num_compared == check.num_carried[action] == 0
    for number in (2, 3):
        check.after_step(step_of(number, *work))
        assert check.num_compared == check.num_carried[action] == 1, "the first that reads them"


def test_two_executions_may_differ_by_what_both_may_be_off() -> None:
    one, _ = check_of(set())
    other, _ = check_of(set())
    zero = np.zeros((2, 4, 16))
    one.samples = {b"a": Output(zero, 0.1), b"b": Output(zero, 1.0), b"c": Output(zero, 1.0)}
    other.samples = {b"a": Output(zero + 0.2, 0.3), b"b": Output(zero - 1.2, 3.0)}
    assert largest_difference(one, other) == (2, pytest.approx(0.5))
    assert largest_difference(one, check_of(set())[0]) == (0, 0.0)
