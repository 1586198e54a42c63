"""What a KV cache buys and costs: one request generated with and without it."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from ..metrics import generation

GIB = 2**30


def draw(
    no_cache_timeline: pd.DataFrame,
    paged_timeline: pd.DataFrame,
    time_ax: Axes,
    bytes_ax: Axes,
    *,
    kv_bytes_per_token: int,
) -> None:
    """Time on `time_ax` and KV memory on `bytes_ax`, both against the tokens generated."""
    for name, timeline, colour, style in (
        ("without a KV cache", no_cache_timeline, "#D55E00", "--"),
        ("with a KV cache (paged)", paged_timeline, "#009E73", "-"),
    ):
        run = generation(timeline, kv_bytes_per_token)
        # clip_on: without a cache the memory is 0, on the axis itself.
        line: dict[str, Any] = {"color": colour, "linestyle": style, "clip_on": False}
        time_ax.plot(run.num_tokens, run.elapsed_s, label=name, **line)
        bytes_ax.plot(run.num_tokens, run.kv_bytes / GIB, label=name, **line)
    time_ax.set_ylabel("time since start (s)")
    bytes_ax.set_ylabel("KV memory held (GiB)")
    for ax in (time_ax, bytes_ax):
        ax.set_xlabel("tokens generated")
        ax.set_xlim(left=0)
        ax.set_ylim(bottom=0)
        ax.grid(True)
        ax.legend(loc="upper left")
        ax.xaxis.set_major_formatter("{x:,.0f}")
    time_ax.set_title("Time")
    bytes_ax.set_title("Memory")
