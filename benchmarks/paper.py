"""Compare the allocators with Figures 2 and 13 of the PagedAttention paper.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023. OPT-13B on
one A100-40GB, 983 blocks of 16 slots, 2,000 requests that all wait from the start, averages while new requests wait.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from kvtwin.analysis.setting import REFERENCE, REFERENCE_NUM_REQUESTS
from kvtwin.sim import RunConfig, simulate
from kvtwin.traces import WORKLOADS, synthesize

SEEDS = (0, 1, 2)
# Two-sided 95 % quantile of Student's t with two degrees of freedom.
T_95 = 4.303
SHARE_TOLERANCE = 3.5  # points
BATCH_TOLERANCE = 10.0  # %
OUTPUT_CVS = (0.7, 0.88, 1.0)


class Published(NamedTuple):
    """Shares in % (Figure 2) and mean batched requests (Figure 13); None where the figure has no label."""

    live: float
    reserved: float | None
    internal: float | None
    rest: float
    batch: float


FIGURE_2_AND_13A = {
    "orca-max": Published(20.4, 13.3, 57.3, 8.9, 7.00),
    "orca-pow2": Published(26.8, 17.9, 13.6, 41.6, 9.81),
    "orca-oracle": Published(38.2, 25.2, 0.0, 36.6, 13.62),
    "paged": Published(96.3, None, None, 3.7, 30.42),
}
FIGURE_13B = {"orca-max": 7.00, "orca-pow2": 43.24, "orca-oracle": 72.75, "paged": 132.44}


def measure(
    policy: str, workload: str, seed: int, output_cv: float | None = None, **settings: Any
) -> Published:
    """One run in the reference setting."""
    trace = synthesize(workload, REFERENCE_NUM_REQUESTS, seed, output_cv=output_cv)
    config = RunConfig(**{**REFERENCE, "policy": policy, "seed": seed, **settings})
    with tempfile.TemporaryDirectory() as out:
        summary = simulate(trace, config, Path(out))
    share = {name: 100 * value for name, value in summary["shares"].items()}
    rest = share["rounding"] + share["external"] + share["free"]
    return Published(
        share["live"], share["reserved"], share["internal"], rest, summary["mean_running"]
    )


def interval(values: list[float]) -> str:
    """Mean and half the width of its 95 % interval over the seeds."""
    half = T_95 * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.2f} ± {half:.2f}"


def figure_2() -> None:
    print(
        "| policy | quantity | paper | kvtwin, mean of 3 seeds ± 95 % | difference | allowed | within |"
    )
    print("|---|---|---|---|---|---|---|")
    for policy, published in FIGURE_2_AND_13A.items():
        runs = [measure(policy, "sharegpt-like", seed) for seed in SEEDS]
        for name, paper in published._asdict().items():
            if paper is None:
                continue
            values = [getattr(run, name) for run in runs]
            difference = statistics.mean(values) - paper
            if name == "batch":
                line(
                    policy,
                    "mean batch",
                    paper,
                    values,
                    100 * difference / paper,
                    BATCH_TOLERANCE,
                    "%",
                )
            else:
                line(policy, f"{name}, %", paper, values, difference, SHARE_TOLERANCE, "points")


def figure_13b() -> None:
    print(
        "| policy | quantity | paper | kvtwin, mean of 3 seeds ± 95 % | difference | allowed | within |"
    )
    print("|---|---|---|---|---|---|---|")
    for policy, paper in FIGURE_13B.items():
        values = [measure(policy, "alpaca-like", seed).batch for seed in SEEDS]
        difference = 100 * (statistics.mean(values) / paper - 1)
        line(policy, "mean batch", paper, values, difference, BATCH_TOLERANCE, "%")


def line(
    policy: str,
    name: str,
    paper: float,
    values: list[float],
    difference: float,
    allowed: float,
    unit: str,
) -> None:
    within = "yes" if abs(difference) <= allowed else "**no**"
    print(
        f"| {policy} | {name} | {paper:.2f} | {interval(values)} | {difference:+.2f} {unit} | {allowed:g} | {within} |"
    )


def sensitivity() -> None:
    print("| policy | output CV | live % | reserved % | internal % | rest % | mean batch |")
    print("|---|---|---|---|---|---|---|")
    for policy in FIGURE_2_AND_13A:
        for output_cv in OUTPUT_CVS:
            runs = [measure(policy, "sharegpt-like", seed, output_cv) for seed in SEEDS]
            means = [
                statistics.mean(getattr(run, name) for run in runs) for name in Published._fields
            ]
            print(
                f"| {policy} | {output_cv:g} | "
                + " | ".join(f"{mean:.1f}" for mean in means)
                + " |"
            )


def variants() -> None:
    print("| paged, changed setting | live % | reserved % | rest % | mean batch |")
    print("|---|---|---|---|---|")
    for label, settings in (
        ("none", {}),
        ("watermark 0", {"watermark": 0.0}),
        ("steps from the roofline, uncalibrated", {"cost": "roofline"}),
    ):
        runs = [measure("paged", "sharegpt-like", seed, **settings) for seed in SEEDS]
        means = [
            statistics.mean(getattr(run, name) for run in runs)
            for name in ("live", "reserved", "rest", "batch")
        ]
        print(f"| {label} | " + " | ".join(f"{mean:.1f}" for mean in means) + " |")


def per_seed() -> str:
    rests = [measure("orca-pow2", "sharegpt-like", seed).rest for seed in SEEDS]
    return ", ".join(f"{rest - FIGURE_2_AND_13A['orca-pow2'].rest:+.2f}" for rest in rests)


def main() -> None:
    prompt, output = WORKLOADS["sharegpt-like"].prompt, WORKLOADS["sharegpt-like"].output
    print("# The PagedAttention paper's Figures 2 and 13, recomputed\n")
    print(
        "Command: `python benchmarks/paper.py > reports/paper.md`. Nothing here was measured on a GPU.\n"
    )
    print(f"{__doc__.split(chr(10), 2)[2].strip()}\n")
    print(
        f"**Fitted**: the output CV of {output.cv} ({output.cv_source}), so the live and reserved bars of\n"
        f"`orca-max` are no independent check; the prompt CV of {prompt.cv} is an assumption.\n"
        f"**Published inputs**: the means {prompt.mean} / {output.mean} ({output.mean_source}).\n"
        "**Predicted**: everything else. Every step lasts 45 ms (Little's law on Figure 13a), so steps weigh the\n"
        "same; memory shares need no latency model. Rest is rounding + external + free, which the paper calls\n"
        "external fragmentation & others.\n"
    )
    print("## Figure 2 and Figure 13a (ShareGPT)\n")
    figure_2()
    print("\n## Figure 13b (Alpaca)\n")
    figure_13b()
    print(
        "\n## What is missed, and why\n\n"
        f"- The rest of `orca-pow2` is at the edge of its tolerance: {per_seed()} points for the seeds {SEEDS}. The\n"
        "  fitted CV drives it (see below): at 0.7 it agrees with the paper.\n"
        "- The mean batch of `paged` is too large, because here everybody waits from the start, while in the paper\n"
        "  2 and 30 requests/s arrive: vLLM was limited by its load there, on Alpaca most of all, and Orca was not.\n"
        "- The rest of `paged` is smaller than the paper's unlabelled 3.7 %, for the same reason.\n"
    )
    print("## Sensitivity to the fitted number: output CV\n")
    sensitivity()
    print("\n## Sensitivity of paged to what the paper does not say\n")
    variants()


if __name__ == "__main__":
    main()
