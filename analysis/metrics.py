"""Pure functions from frames to the numbers that figures show."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .definitions import NS_PER_S
from .parts import GRANTED_PARTS, PART_NAMES


@dataclass(frozen=True)
class PartsOverTime:
    """`edges_s[n + 1]`: bounds of n timeline rows, s since the first. `shares[7, n]`: 0 to 1."""

    edges_s: NDArray[np.float64]
    shares: NDArray[np.float64]


def parts_over_time(timeline: pd.DataFrame, pool_slots: int) -> PartsOverTime:
    """Share of the pool in each part, in the order of `PARTS`, for each row of the timeline."""
    start_ns = timeline["start_ns"].to_numpy()
    end_ns = timeline["end_ns"].to_numpy()
    slots = np.stack([timeline[f"{name}_slots"].to_numpy(dtype=np.float64) for name in PART_NAMES])
    return PartsOverTime(
        edges_s=(np.append(start_ns, end_ns[-1:]) - start_ns[0]) / NS_PER_S,
        shares=slots / pool_slots,
    )


@dataclass(frozen=True)
class Generation:
    """One request alone, after each timeline row: tokens generated, s passed, KV bytes held."""

    num_tokens: NDArray[np.int64]
    elapsed_s: NDArray[np.float64]
    kv_bytes: NDArray[np.float64]


def generation(timeline: pd.DataFrame, kv_bytes_per_token: int) -> Generation:
    """Progress of a run of a single request.

    Alone, a request whose prompt fits into one step gets one token in every step, with and without
    a KV cache, so the steps so far are the tokens so far. KV held is what is granted, the mean
    over the row.
    """
    granted_slots = timeline[[f"{name}_slots" for name in GRANTED_PARTS]].sum(axis="columns")
    return Generation(
        num_tokens=timeline["num_steps"].to_numpy().cumsum(),
        elapsed_s=(timeline["end_ns"].to_numpy() - timeline["start_ns"].iloc[0]) / NS_PER_S,
        kv_bytes=granted_slots.to_numpy(dtype=np.float64) * kv_bytes_per_token,
    )
