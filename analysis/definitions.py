"""What the numbers mean, in the words shown beside them."""

# Latencies are defined as in vLLM's serving benchmark. Keys are those of a run's summary.
LATENCIES = (
    ("ttft_ms", "TTFT", "time to first token: first token minus arrival"),
    (
        "tpot_ms",
        "TPOT",
        "time per output token: (E2EL - TTFT) / (output tokens - 1), requests with at least 2",
    ),
    ("itl_ms", "ITL", "inter-token latency: every single gap between two tokens of a request"),
    ("e2el_ms", "E2EL", "end-to-end latency: last token minus arrival"),
    ("queue_ms", "Queue", "queue time: first admission minus arrival"),
)
STATISTICS = ("mean", "p50", "p99")
LOADED_WINDOW = "from the first arrival until every request was admitted once or rejected"
UNCALIBRATED = "UNCALIBRATED"
UNCALIBRATED_NOTE = (
    f"{UNCALIBRATED}: step times come from a cost model that is not fitted to measurements; "
    "compare policies with them, do not quote them"
)


def latency_cell(value: float | None) -> str:
    """A latency in ms, or a dash where it is undefined."""
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"
