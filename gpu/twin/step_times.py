"""Predicted and measured durations of the steps of an execution, and what follows from them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvtwin.sim.cost import TOTALS, CostModel
from kvtwin.sim.fit_record import FitRecord
from kvtwin.sim.requests import RequestTable

from .content import ContentShape
from .validation import Prediction

Int64 = npt.NDArray[np.int64]

# How far a time may be off, of what a calibrated model predicts: a makespan, a mean TTFT or TPOT. Wide,
# because a fitted sum is known to miss single steps by about as much. A device that differs from
# itself by more refutes nothing, so that its noise is allowed on top.
TOLERANCE = 0.2
FITTED_ERROR = "predicted: the calibration's error on steps left out of its fit"


@dataclass(frozen=True)
class StepTimes:
    """Steps in the order of their execution.

    `start_ns`, `predicted_ns`, `measured_ns`: [num_steps]; `totals`: [num_steps, len(TOTALS)].
    `repeat_ns`: of the same steps in a second execution; None if there was none.
    """

    start_ns: Int64
    totals: Int64
    predicted_ns: Int64
    measured_ns: Int64
    repeat_ns: Int64 | None = None

    @classmethod
    def of(
        cls,
        cost: CostModel,
        start_ns: Sequence[int],
        totals: Sequence[Sequence[int]],
        measured_ns: Sequence[int],
        repeat_ns: Sequence[int] | None = None,
    ) -> "StepTimes":
        """With what `cost` predicts for `totals`, in the order of `TOTALS`."""
        predicted_ns = [cost.step_ns(tuple(map(int, step))) for step in totals]
        assert len(start_ns) == len(totals) == len(measured_ns), (len(start_ns), len(measured_ns))
        assert repeat_ns is None or len(repeat_ns) == len(measured_ns), (
            f"{len(repeat_ns)} steps were repeated of {len(measured_ns)}"
        )
        return cls(
            np.array(start_ns, dtype=np.int64),
            np.array(totals, dtype=np.int64).reshape(-1, len(TOTALS)),
            np.array(predicted_ns, dtype=np.int64),
            np.array(measured_ns, dtype=np.int64),
            None if repeat_ns is None else np.array(repeat_ns, dtype=np.int64),
        )

    def columns(self) -> dict[str, Int64 | None]:
        """Columns of `steps.parquet`; None: nulls."""
        return {
            "start_ns": self.start_ns,
            **{name: self.totals[:, place] for place, name in enumerate(TOTALS)},
            "predicted_ns": self.predicted_ns,
            "measured_ns": self.measured_ns,
            "repeat_ns": self.repeat_ns,
        }

    def repeated_ends_ns(self) -> tuple[Int64, Int64]:
        """When each step ended, and when it would have if steps had lasted as in the repetition.

        Idle times end when they did, or later if the steps before still run.
        """
        assert self.repeat_ns is not None
        ends_ns = self.start_ns + self.measured_ns
        repeated, clock_ns = np.empty_like(ends_ns), 0
        starts = zip(self.start_ns.tolist(), self.repeat_ns.tolist(), strict=True)
        last_end_ns = 0
        for number, (start_ns, repeat_ns) in enumerate(starts):
            if start_ns > last_end_ns:  # idle before it
                clock_ns = max(clock_ns, start_ns)
            clock_ns += repeat_ns
            repeated[number] = clock_ns
            last_end_ns = int(ends_ns[number])
        return ends_ns, repeated


@dataclass(frozen=True)
class RunTimes:
    """What users wait for, in ms: the whole run, and means over its finished requests."""

    makespan: float
    ttft: float
    tpot: float | None  # None: no request had two tokens

    @classmethod
    def of(cls, requests: RequestTable, steps: StepTimes | None = None) -> "RunTimes":
        """Of a run that is over; with `steps`, as if its steps had lasted as in their repetition.

        Raises AssertionError if nothing finished.
        """
        rows = np.array(requests.accepted, dtype=np.int64)
        assert len(rows), "no request was accepted"
        arrival_ns = np.array(requests.arrival_ns, dtype=np.int64)[rows]
        num_output = np.array(requests.num_output_tokens, dtype=np.int64)[rows]
        first_ns, last_ns = (
            np.array(column, dtype=np.int64)[rows]
            for column in (requests.first_token_ns, requests.finished_ns)
        )
        if steps is not None:
            ends_ns, repeated_ns = steps.repeated_ends_ns()
            first_ns, last_ns = (
                repeated_ns[np.searchsorted(ends_ns, times)] for times in (first_ns, last_ns)
            )
        several = num_output > 1
        gaps = (last_ns - first_ns)[several] / (num_output[several] - 1)
        return cls(
            makespan=float(last_ns.max()) / 1e6,
            ttft=float((first_ns - arrival_ns).mean()) / 1e6,
            tpot=float(gaps.mean()) / 1e6 if len(gaps) else None,
        )


def time_predictions(
    policy: str,
    backend: str,
    cost: CostModel,
    predicted: RequestTable,
    executed: RequestTable,
    steps: StepTimes,
    shape: ContentShape,
    block_slots: int,
) -> tuple[Prediction, ...]:
    """Step times of the executed steps, and makespan, TTFT and TPOT of both runs.

    `shape`, `block_slots`: of what was executed. Judged where `cost` is calibrated, for such layers and
    such a backend. Noise is the difference to the repetition, if there was one.
    """
    made = []
    others = _other_layers(cost.fit, shape, backend)
    is_judged = cost.calibrated and not others
    if cost.fit is not None and cost.fit.block_size not in (None, block_slots):
        others.append(
            f"executed in blocks of {block_slots}, fitted to blocks of {cost.fit.block_size}"
        )
    other = "; ".join(others)
    fitted = None if cost.fit is None else cost.fit.cross_validated
    errors = _shares(steps.predicted_ns, steps.measured_ns)
    noise = None if steps.repeat_ns is None else _shares(steps.repeat_ns, steps.measured_ns)
    for name, statistic in (("mean", np.mean), ("p95", lambda shares: np.percentile(shares, 95))):
        made.append(
            Prediction(
                policy,
                "time",
                f"{name} step time error",
                0.0 if fitted is None else 100 * getattr(fitted, name),
                100 * float(statistic(errors)),
                "%",
                None,
                backend,
                None if noise is None else 100 * float(statistic(noise)),
                "; ".join(filter(None, ("" if fitted is None else FITTED_ERROR, other))),
            )
        )
    before, after = RunTimes.of(predicted), RunTimes.of(executed)
    again = None if steps.repeat_ns is None else RunTimes.of(executed, steps)
    for name in ("makespan", "ttft", "tpot"):
        expected, found = getattr(before, name), getattr(after, name)
        if expected is None or found is None:
            continue
        own = None if again is None else abs(getattr(again, name) - found)
        made.append(
            Prediction(
                policy,
                "time",
                name if name == "makespan" else f"mean {name.upper()}",
                expected,
                found,
                "ms",
                TOLERANCE * expected + (own or 0) if is_judged else None,
                backend,
                own,
                other,
            )
        )
    return tuple(made)


def _other_layers(fit: FitRecord | None, shape: ContentShape, backend: str) -> list[str]:
    """How what was executed differs from what was fitted to, so that its times are not predicted."""
    if fit is None:
        return []
    pairs = (
        *(
            (f"{own} {unit}", f"{fitted or own} {unit}")
            for unit, own, fitted in (
                ("layers", shape.num_layers, fit.num_layers),
                ("query heads", shape.num_heads, fit.num_heads),
                ("KV heads", shape.num_kv_heads, fit.num_kv_heads),
                ("channels a head", shape.head_dim, fit.head_dim),
            )
        ),
        (str(shape.dtype).removeprefix("torch."), fit.dtype),
        (backend, fit.backend),
    )
    return [f"executed: {one}, fitted to: {other}" for one, other in pairs if one != other]


def _shares(other_ns: Int64, measured_ns: Int64) -> npt.NDArray[np.float64]:
    shares: npt.NDArray[np.float64] = np.abs(other_ns - measured_ns) / measured_ns
    return shares
