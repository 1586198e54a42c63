"""Calibration and validation on a GPU machine, line by line, until their time is over."""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvtwin.sim import RunConfig, find_policy, policy_settings, size_pool
from kvtwin.sim.cost import CostModel
from kvtwin.traces import Trace, synthesize

from .check import Backend
from .devices import device_name
from .twin.calibrate import calibrated_cost, measure_steps
from .twin.content import ContentShape
from .twin.driver import MeasuredClock, drive
from .twin.execution import content_shape
from .twin.foresight import foresee
from .twin.grid import calibration_grid
from .twin.validate import Depth, validate_decisions
from .twin.validate_times import executed_block_slots, validate_times
from .twin.validation import PolicyValidation

POLICIES = ("paged", "contiguous", "orca-pow2")
# Policies whose sequences hold runs of slots are executed with blocks of one.
BLOCK_SIZES = (16, 1)
Write = Callable[[str, dict[str, Any]], None]
Failed = Callable[[str, Exception], None]
HasTime = Callable[[], bool]


@dataclass(frozen=True)
class TwinScale:
    """What is executed: how large, and how long. `limits`: of the calibration's grid."""

    config: RunConfig
    shape: dict[str, int]  # of `content_shape`
    limits: dict[str, int]
    num_repeats: int
    num_requests: int
    num_traces: int
    depth: Depth
    judges_times: bool = True

    def content_shape(self) -> ContentShape:
        """Of what is executed."""
        return content_shape(self.config, **self.shape)

    def traces(self) -> Iterator[Trace]:
        """All at once into a pool that is too small; over time; short ones in bursts."""
        num = self.num_requests
        made = (
            lambda: synthesize("sharegpt-like", num, 1),
            lambda: synthesize("sharegpt-like", num, 2, rate=40.0),
            lambda: synthesize("alpaca-like", 2 * num, 3, rate=80.0, burstiness=0.3),
        )
        for place, name in enumerate(("at once", "over time", "bursts")[: self.num_traces]):
            yield replace(made[place](), name=name)


# The heads of Llama-3.1-8B, in as many layers as make a step of some length.
FULL = TwinScale(
    RunConfig(
        model="llama-3.1-8b",
        gpu="h100-80gb",
        num_gpu_blocks_override=384,
        max_model_len=2048,
        max_num_seqs=48,
        max_num_batched_tokens=2048,
        max_tokens=96,
        compaction=True,
    ),
    shape={"num_layers": 4},
    limits={
        "max_num_seqs": 48,
        "max_context": 2048,
        "max_num_batched_tokens": 2048,
        "max_slots": 32768,
    },
    num_repeats=5,
    num_requests=40,
    num_traces=3,
    depth=Depth(),
)
# Every line of code, and nothing to be waited for.
DRY = replace(
    FULL,
    config=replace(FULL.config, num_gpu_blocks_override=160, max_tokens=4),
    shape={"num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "head_dim": 16},
    limits={
        "max_num_seqs": 4,
        "max_context": 48,
        "max_num_batched_tokens": 64,
        "max_slots": 256,
    },
    num_repeats=1,
    num_requests=3,
    num_traces=1,
    judges_times=False,
)


def calibrate_on_device(
    write: Write, seconds: float, backend: Backend, scale: TwinScale, versions: dict[str, str]
) -> dict[int, CostModel]:
    """Measure for at most `seconds`, and write a line with the model fitted to each block size.

    By block size; those for which too little was measured are absent.
    """
    costs, started = {}, time.monotonic()
    for place, block_size in enumerate(BLOCK_SIZES, start=1):
        left_s = started + seconds * place / len(BLOCK_SIZES) - time.monotonic()
        cost, line = calibrate_blocks(left_s, backend, scale, block_size, versions)
        write("calibrated", {"block_size": block_size, **line})
        if cost is not None:
            costs[block_size] = cost
    return costs


def calibrate_blocks(
    seconds: float,
    backend: Backend,
    scale: TwinScale,
    block_size: int,
    versions: dict[str, str],
) -> tuple[CostModel | None, dict[str, Any]]:
    """The model for blocks of that size, None if too little was measured; and a line's content."""
    shape, steps = scale.content_shape(), calibration_grid(**scale.limits)
    samples = measure_steps(
        steps, shape, backend, block_size, num_repeats=scale.num_repeats, seconds=seconds
    )
    num = 0 if samples is None else len(samples.totals)
    if samples is None or 2 * num < len(steps):
        return None, {"num_steps": num, "of": len(steps), "cost": None}
    cost, _ = calibrated_cost(
        samples,
        shape,
        backend,
        model=scale.config.model,
        block_size=block_size,
        source=" ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        device_name=device_name(backend.device),
        date=time.strftime("%Y-%m-%d"),
        versions=versions,
    )
    return cost, {"num_steps": num, "of": len(steps), "cost": cost.to_dict()}


def validate_on_device(
    write: Write,
    failed: Failed,
    has_time: HasTime,
    backend: Backend,
    scale: TwinScale,
    costs: dict[int, CostModel],
) -> bool:
    """A line for each trace and policy, until the time is over; returns whether all passed.

    Times are predicted with the one of `costs` for the blocks that are executed; if there is none, with
    the roofline, and not judged.
    """
    all_passed, num = True, 0
    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        for block_size, cost in costs.items():
            paths[block_size] = Path(folder) / f"blocks-of-{block_size}.json"
            replace(cost, calibrated=scale.judges_times).save(paths[block_size])
        pairs = [(trace, policy) for trace in scale.traces() for policy in POLICIES]
        for trace, policy in pairs:
            if num and not has_time():
                break
            num += 1
            try:
                config = config_of(scale, policy, paths)
                result = _validate(trace, config, backend, scale)
            except Exception as error:
                failed(f"validate {trace.name}, {policy}", error)
                continue
            all_passed &= result.passed
            write("validated", {"trace": trace.name, **result.to_dict()})
    write("all_validated", {"num": num, "of": len(pairs), "complete": num == len(pairs)})
    return all_passed


def config_of(scale: TwinScale, policy: str, paths: Mapping[int, Path]) -> RunConfig:
    """The configuration for a policy, with the coefficients file for the blocks that it is executed with."""
    config = replace(scale.config, policy=policy)
    settings = policy_settings(config, size_pool(config))
    path = paths.get(executed_block_slots(find_policy(policy)(settings), config))
    return config if path is None else replace(config, cost=str(path))


def _validate(
    trace: Trace, config: RunConfig, backend: Backend, scale: TwinScale
) -> PolicyValidation:
    clock, shape = MeasuredClock(), scale.content_shape()
    foresight = foresee(trace, config, lambda engine, executor: drive(engine, executor, clock))
    result, *_ = validate_decisions(foresight, shape, backend, scale.depth, paranoid=False)
    times = validate_times(foresight, shape, backend).predictions
    return replace(result, predictions=(*result.predictions, *times))
