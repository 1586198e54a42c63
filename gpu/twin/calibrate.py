"""Measures how long steps take on a device, and fits a cost model to that."""

from collections.abc import Sequence
from time import monotonic

import numpy as np
import torch

from kvtwin.sim import BlockGroups
from kvtwin.sim.calibration import Fit, Samples, fit_steps
from kvtwin.sim.cost import CostModel
from kvtwin.sim.fit_record import FitRecord

from ..check.backends import Backend
from .batch import Batch, make_batch
from .clock import timed_ns
from .content import ContentShape, TokenContent
from .grid import GridStep
from .layers import executed_layers, step_layers
from .pool import DevicePool
from .step import put_on_device, run_step

NUM_REPEATS = 5
SCOPE = (
    "fitted steps store K and V and attend, in {num_layers} layers of {num_heads} query and {num_kv_heads} KV "
    "heads of {head_dim}: no projections, no feed-forward, no sampling, no server"
)


def measure_steps(
    steps: Sequence[GridStep],
    shape: ContentShape,
    backend: Backend,
    block_size: int,
    *,
    num_repeats: int = NUM_REPEATS,
    seconds: float = float("inf"),
) -> Samples | None:
    """Durations of `steps`: once to warm up, then all of them `num_repeats` times, one after the other.

    After `seconds` it stops, with the repeats that are complete, or, without any, with the steps that
    were measured at all. None: not one was. Other steps lie between repeats of a step, so that noise
    has what changes in the meantime.
    """
    bench = _Bench(steps, shape, backend, block_size)
    started = monotonic()
    durations_ns: list[list[int]] = []
    for repeat in range(-1, num_repeats):
        measured: list[int] = []
        for step in steps:
            if monotonic() - started >= seconds:
                break
            measured.append(bench.measure(step))
        if repeat >= 0:
            durations_ns.append(measured)
        if len(measured) < len(steps):
            break
    complete = [column for column in durations_ns if len(column) == len(steps)] or durations_ns[:1]
    if not complete or not complete[0]:
        return None
    num_points = len(complete[0])
    return Samples(
        np.array([step.totals() for step in steps[:num_points]], dtype=np.int64),
        np.array(complete, dtype=np.int64).T,
    )


class _Bench:
    """A pool whose blocks sequences take in random order, as after a long run."""

    def __init__(
        self, steps: Sequence[GridStep], shape: ContentShape, backend: Backend, block_size: int
    ) -> None:
        self._backend, self._block_size = backend, block_size
        self._content = TokenContent(shape, backend.device)
        self._layers = executed_layers(shape, BlockGroups())
        # Every sequence may have a block that it fills with one token only.
        num_blocks = max(
            sum(
                -(-length // block_size)
                for length in (*map(sum, step.chunks), *step.contexts, 2 * step.moved_slots)
            )
            for step in steps
        )
        self._pool = DevicePool(shape, (num_blocks + 1) * block_size, block_size, backend.device)
        self._generator = np.random.default_rng(0)
        # What a sequence has before the step is never poison.
        self._pool.tensor.normal_()

    def measure(self, step: GridStep) -> int:
        """Nanoseconds of moves and step, as an execution counts them."""
        device, pool = self._backend.device, self._pool
        tensors = put_on_device(self._batch(step), self._content, device)
        out = torch.empty_like(tensors.query)
        num = step.moved_slots
        duration_ns = timed_ns(lambda: pool.move(0, num, num), device) if num else 0
        layers, ops = step_layers(self._layers, pool.layers), self._backend.ops
        return duration_ns + timed_ns(lambda: run_step(layers, tensors, ops, out), device)

    def _batch(self, step: GridStep) -> Batch:
        work = sorted(
            [*step.chunks, *((context - 1, 1) for context in step.contexts)],
            key=lambda item: item[1] == 1,
        )
        firsts, nums = np.array(work, dtype=np.int64).reshape(-1, 2).T
        num_blocks = -(-(firsts + nums) // self._block_size)
        free = self._generator.permutation(self._pool.num_slots // self._block_size).astype(
            np.int32
        )
        tables = np.zeros((len(work), int(num_blocks.max(initial=0))), dtype=np.int32)
        begins = np.cumsum(num_blocks) - num_blocks
        for row, (begin, num) in enumerate(zip(begins, num_blocks, strict=True)):
            tables[row, :num] = free[begin : begin + num]
        ids = self._generator.integers(-(2**63), 2**63, int(nums.sum()), dtype=np.int64)
        return make_batch(ids, tables[None], firsts, nums, self._block_size, int((nums > 1).sum()))


def calibrated_cost(
    samples: Samples,
    shape: ContentShape,
    backend: Backend,
    *,
    model: str,
    block_size: int,
    source: str,
    device_name: str,
    date: str,
    versions: dict[str, str],
) -> tuple[CostModel, Fit]:
    """The cost model fitted to `samples`, with its record."""
    fit = fit_steps(samples)
    dtype = str(shape.dtype).removeprefix("torch.")
    record = FitRecord(
        source=source,
        device=device_name,
        backend=backend.name,
        dtype=dtype,
        model=model,
        num_layers=shape.num_layers,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        block_size=block_size,
        date=date,
        versions=versions,
        num_points=fit.num_points,
        in_sample=fit.in_sample,
        cross_validated=fit.cross_validated,
        noise=fit.noise,
    )
    scope = SCOPE.format(
        num_layers=shape.num_layers,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
    )
    name = f"fitted-{backend.name}"
    return CostModel(name, True, (fit.term(),), (scope, *fit.notes()), record), fit
