"""The result of one run as a block of lines, named like those of vLLM's serving benchmark."""

from typing import Any

from .definitions import LATENCIES, LOADED_WINDOW, STATISTICS, UNCALIBRATED, latency_cell
from .swaps import HEADINGS, swap_cells

WIDTH = 60
LABEL_WIDTH = 42


def run_lines(summary: dict[str, Any]) -> list[str]:
    """All lines but the verdict. Token counts are those of finished requests."""
    duration_s = (summary["end_ns"] - summary["start_ns"]) / 1e9
    lines = [
        f" kvtwin run: {summary['policy']} ".center(WIDTH, "="),
        _line("Successful requests", f"{summary['num_finished']:,}"),
        _line("Rejected requests", f"{summary['num_rejected']:,}"),
        _line("Clipped requests", f"{summary['num_clipped']:,}"),
        _line(f"{_how(summary)} duration (s)", f"{duration_s:,.2f}"),
        _line("Total input tokens", f"{summary['num_prompt_tokens']:,}"),
        _line("Total generated tokens", f"{summary['num_output_tokens']:,}"),
        _line("Request throughput (req/s)", f"{summary['requests_per_s']:,.2f}"),
        _line("Output token throughput (tok/s)", f"{summary['output_tokens_per_s']:,.2f}"),
        _line("Mean running requests", f"{summary['mean_running']:.2f}"),
        _line("Most running at any time", f"{summary['most_running']:,}"),
        _line("Preemptions", f"{summary['preemptions']:,}"),
        _line("Recomputed tokens", f"{summary['recomputed_tokens']:,}"),
        _line("Prefix hits (tokens)", f"{summary['hit_tokens']:,}"),
        *_queue_lines(summary),
        *_group_lines(summary),
        "Share of the KV pool, mean over the loaded window".center(WIDTH, "-"),
        *(
            _line(f"{name.capitalize()} (%)", f"{100 * share:.2f}")
            for name, share in summary["shares"].items()
        ),
        _line("Most in use at any time (%)", f"{100 * summary['peak_used_share']:.2f}"),
        ("Latency" if summary["calibrated"] else f"Latency, {UNCALIBRATED}").center(WIDTH, "-"),
    ]
    for key, name, _ in LATENCIES:
        lines += [
            _line(f"{statistic.capitalize()} {name} (ms)", latency_cell(summary[key][statistic]))
            for statistic in STATISTICS
        ]
    lines += [f"{name}: {meaning}" for _, name, meaning in LATENCIES]
    lines.append(f"Loaded window: {LOADED_WINDOW}")
    return [*lines, "=" * WIDTH]


def _how(summary: dict[str, Any]) -> str:
    backend = summary.get("executed_with")
    return "Simulated" if backend is None else f"Executed ({backend})"


def _queue_lines(summary: dict[str, Any]) -> list[str]:
    if summary["saturated"]:
        return [_line("Queue", "saturated")]
    judged = summary["waiting_at_last_arrival"] is not None
    growing = "yes" if summary["overloaded"] else "no" if judged else "-"
    waiting = (
        ("half of the arrival span", "waiting_at_half"),
        ("the last arrival", "waiting_at_last_arrival"),
    )
    return [
        *(_line(f"Waiting at {when}", _count(summary[key])) for when, key in waiting),
        _line("Queue still growing at the last arrival", growing),
    ]


def _group_lines(summary: dict[str, Any]) -> list[str]:
    """Of policies that serve several sequences of a request."""
    if "sharing" not in summary:
        return []
    sharing, swapping = summary["sharing"], summary["swapping"]
    saved, host = sharing["saved_share_of_blocks"], swapping["host_peak_used_share"]
    return [
        _line("Blocks saved by sharing (%)", f"{100 * saved:.2f}"),
        _line("Blocks copied on write", f"{sharing['num_copied_blocks']:,}"),
        *(
            _line(heading[0].upper() + heading[1:], cell)
            for heading, cell in zip(HEADINGS, swap_cells(summary), strict=True)
        ),
        _line(
            "Recomputed because the host was full",
            f"{swapping['num_recomputed_for_want_of_host']:,}",
        ),
        _line("Waited for swaps, uncalibrated link (s)", f"{swapping['waited_ns'] / 1e9:,.2f}"),
        _line("Most of the host's pool in use (%)", f"{100 * host:.2f}"),
    ]


def _count(num: int | None) -> str:
    return "-" if num is None else f"{num:,}"


def _line(label: str, value: str) -> str:
    return f"{label + ':':<{LABEL_WIDTH}}{value:>{WIDTH - LABEL_WIDTH}}"
