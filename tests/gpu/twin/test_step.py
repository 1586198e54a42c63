"""One step through block tables, against attention over each sequence's own tokens."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kvtwin.gpu.audit.poison import is_poison
from kvtwin.gpu.check.reference import attention
from kvtwin.gpu.check.same_precision import torch_attention
from kvtwin.gpu.check.tolerance import allowed_error
from kvtwin.gpu.twin.batch import make_batch
from kvtwin.gpu.twin.content import ContentShape, TokenContent
from kvtwin.gpu.twin.layers import executed_layers, pool_shape, step_layers, windows_of
from kvtwin.gpu.twin.pool import DevicePool
from kvtwin.gpu.twin.step import put_on_device, run_step
from kvtwin.sim import BlockGroups

SHAPE = ContentShape(2, 4, 2, 16, torch.float16)
# Sequences as (tokens in the pool, new tokens): a prompt, a chunk of one, a decode, a prompt's last
# token, a decode whose new token begins a block.
SEQS = ((0, 9), (5, 4), (10, 1), (0, 1), (8, 1))


# Two layers with everything; one with a window of 3 that has a table of its own, beside two without.
GROUPS = (BlockGroups(), BlockGroups((3, None), (1, 2)))


def run(ops: Any, block_slots: int, groups: BlockGroups = GROUPS[0]) -> SimpleNamespace:
    """Everything in front of the new tokens is stored by a step of its own.

    Block 0 is nobody's, and in the place of what is out of a window's sight before the last step.
    """
    num_layers = max(2, sum(groups.token_slots))
    shape = replace(SHAPE, num_layers=num_layers, windows=windows_of(groups, num_layers))
    content = TokenContent(shape, "cpu")
    pool = DevicePool(pool_shape(shape, groups), 120 * block_slots, block_slots, "cpu")
    layers = step_layers(executed_layers(shape, groups), pool.layers)
    firsts, nums = (np.array(column, dtype=np.int64) for column in zip(*SEQS, strict=True))
    ids = [np.arange(100 * seq, 100 * seq + sum(lens)) for seq, lens in enumerate(SEQS)]
    width = -(-11 // block_slots)
    num_groups = len(groups.windows)
    order = 1 + np.random.default_rng(0).permutation(num_groups * len(SEQS) * width)
    tables = order.reshape(num_groups, len(SEQS), width).astype(np.int32)
    written, freed = [], []
    for begins, counts in ((np.zeros(len(SEQS), dtype=np.int64), firsts), (firsts, nums)):
        here = np.flatnonzero(counts)
        here = here[np.argsort(counts[here] == 1, kind="stable")]
        spans = zip(here, begins[here], counts[here], strict=True)
        batch = make_batch(
            np.concatenate([ids[seq][begin : begin + num] for seq, begin, num in spans]),
            tables[:, here],
            begins[here],
            counts[here],
            block_slots,
            int((counts[here] > 1).sum()),
        )
        step = put_on_device(batch, content, "cpu")
        out = torch.full_like(step.query, torch.nan)
        run_step(layers, step, ops, out)
        written += batch.slots.ravel().tolist()
        for table, window in zip(tables, groups.windows, strict=True):
            for row, first in zip(table, firsts.tolist(), strict=True):
                num = max(0, first - window + 1) // block_slots if window else 0
                freed += (row[:num] * block_slots).tolist()
                row[:num] = 0
        pool.poison([(slot, block_slots) for slot in freed if slot])
    return SimpleNamespace(
        shape=shape,
        pool=pool,
        content=content,
        ids=ids,
        here=here,
        out=out,
        written=written,
        batch=batch,
    )


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("block_slots", [1, 4])
def test_a_step_is_attention_over_each_sequence_alone(
    ops: Any, block_slots: int, groups: BlockGroups
) -> None:
    ran, scale = run(ops, block_slots, groups), SHAPE.head_dim**-0.5
    assert (0 in ran.batch.tables) == (groups != GROUPS[0]), "there is something out of sight"
    for place, seq in enumerate(ran.here.tolist()):
        num_new = SEQS[seq][1]
        ids = torch.from_numpy(ran.ids[seq])
        key, value = ran.content.of(ids, "key"), ran.content.of(ids, "value")
        query = ran.content.of(ids[-num_new:], "query")
        rows = slice(ran.batch.starts[place], ran.batch.starts[place + 1])
        for layer, window in enumerate(ran.shape.windows or (0, 0)):
            whole = [tensor[layer] for tensor in (query, key, value)]
            exact = [tensor.double().numpy() for tensor in whole]
            expected = attention(*exact, scale=scale, window=window)
            plain = torch_attention(*whole, scale=scale, window=window).double().numpy()
            error = float(np.abs(plain - expected).max())
            tolerance = allowed_error(error, float(np.abs(expected).max()), SHAPE.dtype)
            found = ran.out[layer, rows].double().numpy()
            assert np.abs(found - expected).max() <= tolerance


def test_nothing_else_is_written(ops: Any) -> None:
    ran = run(ops, 4)
    assert len(set(ran.written)) == sum(map(sum, SEQS))
    unwritten = np.ones(ran.pool.num_slots, dtype=bool)
    unwritten[ran.written] = False
    for half in ran.pool.tensor.flatten(0, 1):
        assert (is_poison(half).numpy() == unwritten).all()


def test_runs_move_over_each_other() -> None:
    for source, target in ((3, 0), (0, 3), (2, 2), (0, 8), (9, 1)):
        pool = DevicePool(SHAPE, 16, 1, "cpu")
        numbers = torch.arange(pool.tensor.numel(), dtype=torch.float32) % 1999
        pool.tensor.copy_(numbers.view(pool.tensor.shape))
        before = pool.tensor.clone()
        pool.move(source, target, 7)
        kept = [slot for slot in range(16) if not target <= slot < target + 7]
        assert torch.equal(
            pool.tensor[:, :, target : target + 7], before[:, :, source : source + 7]
        )
        assert torch.equal(pool.tensor[:, :, kept], before[:, :, kept])
