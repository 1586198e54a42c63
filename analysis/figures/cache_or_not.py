"""What a KV cache buys and costs: one request generated with and without it."""

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
    for label, timeline, style in (
        ("without a KV cache: every step computes all tokens again", no_cache_timeline, "--"),
        ("with a KV cache (paged): every step computes one token", paged_timeline, "-"),
    ):
        run = generation(timeline, kv_bytes_per_token)
        time_ax.plot(run.num_tokens, run.elapsed_s, style, label=label)
        bytes_ax.plot(run.num_tokens, run.kv_bytes / GIB, style)
    time_ax.set_ylabel("time since start (s)")
    time_ax.legend(loc="upper left")
    bytes_ax.set_ylabel("KV memory in use (GiB)")
    for ax in (time_ax, bytes_ax):
        ax.set_xlabel("tokens generated")
        ax.set_xlim(left=0)
        ax.set_ylim(bottom=0)
        ax.grid(True)
        ax.xaxis.set_major_formatter("{x:,.0f}")
    time_ax.set_title("Time")
    bytes_ax.set_title("Memory")
