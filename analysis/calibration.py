"""What `kvtwin calibrate` fits, and how it tells of it."""

import platform
import shlex
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kvtwin.sim import CostModel, RunConfig
from kvtwin.sim.calibration import Fit
from kvtwin.sim.calibration.bench_fit import fit_bench
from kvtwin.traces import UserError

from .device_flags import DeviceFlags, opened_backend
from .setting import ANY_GPU

_LIBRARIES = ("kvtwin", "numpy", "torch", "triton")
_LEAST_STEPS = 20


def fit_here(
    flags: DeviceFlags,
    model: str,
    kv_cache_dtype: str,
    block_size: int,
    limits: dict[str, int],
    seconds: float | None,
) -> tuple[CostModel, Fit]:
    """Measure steps within `limits` (of `calibration_grid`) on what the flags name, and fit to them.

    Raises UserError where it cannot be executed, or the time is over before enough is measured.
    """
    with opened_backend(flags) as backend:
        from kvtwin.gpu.devices import device_name
        from kvtwin.gpu.twin.calibrate import calibrated_cost, measure_steps
        from kvtwin.gpu.twin.execution import content_shape
        from kvtwin.gpu.twin.grid import calibration_grid

        config = RunConfig(
            model=model, gpu=ANY_GPU, kv_cache_dtype=kv_cache_dtype, block_size=block_size
        )
        shape = content_shape(config, flags.layers, flags.heads, flags.kv_heads, flags.head_dim)
        samples = measure_steps(
            calibration_grid(**limits),
            shape,
            backend,
            block_size,
            seconds=float("inf") if seconds is None else seconds,
        )
        num_steps = 0 if samples is None else len(samples.totals)
        if samples is None or num_steps < _LEAST_STEPS:
            raise UserError(
                f"{num_steps} steps were measured, at least {_LEAST_STEPS} are needed; "
                "give a larger --seconds, or a larger grid"
            )
        return calibrated_cost(
            samples,
            shape,
            backend,
            model=config.model,
            block_size=block_size,
            source=typed_command(),
            device_name=device_name(backend.device),
            date=today(),
            versions=versions(),
        )


def fit_served(
    path: Path, model: str, gpu: str | None, max_num_batched_tokens: int
) -> tuple[CostModel, Fit, list[str]]:
    """Fit to what clients of a server saw; and what that leaves out, a line each."""
    made = fit_bench(
        path,
        model=RunConfig(model=model, gpu=ANY_GPU).model,
        device=gpu or "an unnamed server",
        max_num_batched_tokens=max_num_batched_tokens,
        source=typed_command(),
        date=today(),
    )
    lines = [f"steps left out: {num:,} x {why}" for why, num in sorted(made.unknown.items())]
    lines += [f"requests left out: {num:,} x {why}" for why, num in sorted(made.skipped.items())]
    return made.cost, made.fit, lines


def fit_lines(cost: CostModel, fit: Fit) -> Iterator[str]:
    """Coefficients and errors, a line each."""
    yield f"{'constant':<24}{fit.constant_ns / 1e3:>14,.3f} us a step"
    for name, value_ns in fit.named_ns().items():
        yield f"{name:<24}{value_ns / 1e3:>14,.3f} us each"
    for name, error in (
        ("error, in sample", fit.in_sample),
        ("error, cross-validated", fit.cross_validated),
        ("noise of repeats", fit.noise),
    ):
        if error is None:
            yield f"{name:<24}not measured"
        else:
            yield f"{name:<24}{100 * error.mean:>13.1f} % mean, {100 * error.p95:.1f} % p95"
    yield from (f"Note: {note}" for note in cost.notes)


def typed_command() -> str:
    """The command as it can be typed again."""
    return shlex.join(["kvtwin", *sys.argv[1:]])


def today() -> str:
    """The date, for the record."""
    return time.strftime("%Y-%m-%d")


def versions() -> dict[str, str]:
    """Of Python and of what takes part in an execution, as far as it is installed."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
