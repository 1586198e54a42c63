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
NS_PER_S = 1e9
NS_PER_MS = 1e6
LOADED_WINDOW = "from the first arrival until nobody waits any more and nobody will"
PREFIX_HITS = "prompt tokens that were found in the pool when the request was admitted first"
UNCALIBRATED = "UNCALIBRATED"
UNCALIBRATED_NOTE = (
    f"{UNCALIBRATED}: step times come from a cost model that is not fitted to measurements; "
    "compare policies with them, do not quote them"
)


DEPENDS_ON_STEP_TIMES = (
    "requests arrive over time, so mean running, shares and queues depend on these step times too"
)


def latency_note(*, calibrated: bool, saturated: bool) -> str | None:
    """What to keep in mind about the numbers that step times decide; None where they are fitted."""
    if calibrated:
        return None
    return UNCALIBRATED_NOTE if saturated else f"{UNCALIBRATED_NOTE}; {DEPENDS_ON_STEP_TIMES}"


def latency_cell(value: float | None) -> str:
    """A latency in ms, or a dash where it is undefined."""
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"
