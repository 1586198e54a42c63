"""What it costs to bring a preempted sequence back, by block size: Figure 19 of the PagedAttention paper."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from paper import SEEDS

from kvtwin.analysis.figures.canvas import canvas, to_svg
from kvtwin.analysis.setting import REFERENCE
from kvtwin.sim import RunConfig, load_cost, policy_settings, simulate, size_pool
from kvtwin.traces import synthesize

SVG_NAME = "swap-or-recompute.svg"
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MODES = ("swap", "recompute")
NUM_TOKENS = 512  # of the one sequence; both costs are nearly proportional to it
NUM_REQUESTS = 500
COPY_NS = (2500, 5000, 10_000)
MOST_ABOVE = 20.0  # %, recompute above swap, by the paper
SIMILAR = (16, 32, 64)


def config_of(block_size: int, mode: str, seed: int, copy_ns: int = 5000) -> RunConfig:
    """Steps from the roofline: with constant ones recompute would cost nothing. The host has room for all."""
    changed = {
        "policy": "vllm-v0",
        "cost": "roofline",
        "block_size": block_size,
        "preemption_mode": mode,
        "swap_space": 12.0,
        "swap_copy_ns": copy_ns,
        "seed": seed,
    }
    return RunConfig(**{**REFERENCE, **changed})


def alone_ms(block_size: int, mode: str, copy_ns: int = 5000) -> float:
    """One sequence, out and in again, or its prompt computed again in a step of its own."""
    config = config_of(block_size, mode, 0, copy_ns)
    if mode == "recompute":
        pairs = NUM_TOKENS * (NUM_TOKENS + 1) // 2
        return load_cost(config).step_ns((NUM_TOKENS, pairs, NUM_TOKENS, 0, 0, 0)) / 1e6
    link = policy_settings(config, size_pool(config)).link
    return 2 * link.transfer_ns(-(-NUM_TOKENS // block_size)) / 1e6


def end_to_end_ms(block_size: int, mode: str) -> float:
    """Mean time per output token behind the first, of requests that all wait from the start; mean of the seeds."""
    values = []
    for seed in SEEDS:
        trace = synthesize("sharegpt-like", NUM_REQUESTS, seed)
        with tempfile.TemporaryDirectory() as out:
            summary = simulate(trace, config_of(block_size, mode, seed), Path(out))
        assert summary["preemptions"] > 0, f"nobody is preempted with blocks of {block_size}"
        values.append(summary["tpot_ms"]["mean"])
    return statistics.mean(values)


def figure_19(folder: Path) -> None:
    """Print the table and whether the paper's statements hold; draw the figure into `folder`."""
    alone = {mode: [alone_ms(size, mode) for size in BLOCK_SIZES] for mode in MODES}
    whole = {mode: [end_to_end_ms(size, mode) for size in BLOCK_SIZES] for mode in MODES}
    print(
        "Step times from the roofline, swaps at the published PCIe rate plus 5 us (assumed) for each K or V of a layer "
        f"of a\nblock. None of this is calibrated. Alone: {NUM_TOKENS} tokens out and in, or computed again. End to "
        f"end: mean time per\noutput token, {NUM_REQUESTS} ShareGPT-like requests at once, mean of {len(SEEDS)} seeds. "
        "Swaps overlap with the steps of others\nhere, which vLLM's did not.\n"
    )
    print(
        "| block size | alone: swap, ms | recompute, ms | end to end: swap, ms | recompute, ms | recompute above swap |"
    )
    print("|---|---|---|---|---|---|")
    above = [100 * (b / a - 1) for a, b in zip(whole["swap"], whole["recompute"], strict=True)]
    columns = (BLOCK_SIZES, *(d[mode] for d in (alone, whole) for mode in MODES), above)
    for size, *cells, excess in zip(*columns, strict=True):
        shown = " | ".join(f"{cell:.1f}" for cell in cells)
        print(f"| {size} | {shown} | {excess:+.0f} % |")
    print(f"\n![Swap or recompute, by block size]({SVG_NAME})\n")
    statements(alone, whole, above)
    (folder / SVG_NAME).write_bytes(draw(alone, whole))


def statements(
    alone: dict[str, list[float]], whole: dict[str, list[float]], above: list[float]
) -> None:
    """The paper's section 7.3, one by one."""
    swap, recompute = alone["swap"], alone["recompute"]
    at = {size: place for place, size in enumerate(BLOCK_SIZES)}
    similar = [above[at[size]] for size in SIMILAR]
    exceeds = [size for size, excess in zip(BLOCK_SIZES, above, strict=True) if excess > MOST_ABOVE]
    slower = [b / a for a, b in zip(swap, recompute, strict=True)]
    print(
        f"- *Swapping is expensive at small blocks*: yes. {swap[0]:.0f} ms at 1 against {swap[at[16]]:.0f} ms at 16, "
        f"alone; end to end\n  {whole['swap'][0]:.1f} against {whole['swap'][at[16]]:.1f} ms.\n"
        f"- *Recompute does not depend on the block size*: yes, alone ({min(recompute):.0f} to "
        f"{max(recompute):.0f} ms), by construction.\n"
        f"- *Recompute is never more than {MOST_ABOVE:g} % above swap*: end to end "
        + (
            f"not for blocks of {', '.join(map(str, exceeds))}, where the pool has few blocks left and\n  preempts all "
            "the time; for all others yes."
            if exceeds
            else "yes."
        )
        + f" Alone no: {slower[at[16]]:.1f} times at 16.\n"
        f"- *Both are similar for blocks of 16 to 64*: {min(similar):+.0f} to {max(similar):+.0f} % end to end."
    )
    print(
        "\nSwap alone, by cost of a copy (ms): "
        + "; ".join(
            f"{copy_ns / 1000:g} us: "
            + ", ".join(f"{alone_ms(size, 'swap', copy_ns):.0f} at {size}" for size in (1, 16, 64))
            for copy_ns in COPY_NS
        )
        + "."
    )


def draw(alone: dict[str, list[float]], whole: dict[str, list[float]]) -> bytes:
    """Two panels over the block size, one line a mode."""
    titles = (
        (f"One sequence of {NUM_TOKENS} tokens, out and back", "milliseconds", alone),
        ("End to end, ShareGPT-like requests", "ms per output token, mean", whole),
    )
    with canvas(9, 3.6) as figure:
        for axes, (title, unit, values) in zip(figure.subplots(1, 2), titles, strict=True):
            for mode, marker in zip(MODES, "os", strict=True):
                axes.plot(BLOCK_SIZES, values[mode], marker=marker, label=mode)
            axes.set_xscale("log", base=2)
            axes.set_xticks(BLOCK_SIZES, [str(size) for size in BLOCK_SIZES])
            axes.set_ylim(bottom=0)
            axes.set_xlabel("block size, tokens")
            axes.set_ylabel(unit)
            axes.set_title(title)
            axes.legend()
        figure.supxlabel("OPT-13B on A100-40GB; step times and link uncalibrated", fontsize=8)
        return to_svg(figure)
