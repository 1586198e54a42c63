"""The public slices have the statistics that were measured on them independently."""

from pathlib import Path

import numpy as np
import pytest

from kvtwin.traces import describe, find_prefixes, open_trace

# rows, rate, inter-arrival CV, prompt and output (mean, median, p99, max); None: not stated.
# Rounded as in the table they come from (README of the reference data).
SLICES = {
    "azure/AzureLLMInferenceTrace_code.slice.csv": (
        ("azure", 5100, "3.10", "13.7"),
        (2052, 1472, 7436, 7437),
        (27.3, 13, 232, 1899),
    ),
    "azure/AzureLLMInferenceTrace_conv.slice.csv": (
        ("azure", 7578, "5.21", "1.06"),
        (1181, 1039, 4111, 14050),
        (241, 176, 622, 1000),
    ),
    "mooncake/conversation_trace.slice.jsonl": (
        ("mooncake", 4665, "3.12", None),
        (13214, 7863, 92244, 123192),
        (346, 357, 1094, 2000),
    ),
    "mooncake/synthetic_trace.slice.jsonl": (
        ("mooncake", 1486, "3.72", "1.00"),
        (11664, 2741, 56695, 134773),
        (199, 170, 777, 842),
    ),
    "mooncake/arxiv_mooncake_trace.excerpt.jsonl": (
        ("mooncake", 50, None, None),
        (6910, 6169, 29266, 30146),
        (188, 27, 630, 650),
    ),
    "vidur/splitwise_conv.slice.csv": (
        ("vidur", 4424, "4.92", "1.08"),
        (1173, 1047, 4109, 7930),
        (254, 205, 626, 1000),
    ),
}


@pytest.mark.parametrize("name", SLICES)
def test_statistics(shared_dir: Path, name: str) -> None:
    (format, num_rows, rate, cv), prompt, output = SLICES[name]
    summary = describe(open_trace(shared_dir / "traces" / name))
    assert summary.format == format
    assert summary.num_requests == num_rows
    assert summary.skipped == {}
    assert not summary.saturated
    assert summary.rate is not None
    assert summary.interarrival_cv is not None
    if rate is not None:  # the table divides rows by the span, `describe` divides gaps by it
        assert f"{num_rows / summary.span_s:.2f}" == rate
        assert summary.rate * summary.span_s == pytest.approx(num_rows - 1)
    if cv is not None:
        assert f"{summary.interarrival_cv:.{len(cv.split('.')[1])}f}" == cv
    for measured, (mean, median, p99, maximum) in (
        (summary.prompt, prompt),
        (summary.output, output),
    ):
        # The table rounds to whole tokens (medians of 1472.5 both ways), means below 100 to tenths.
        assert measured.mean == pytest.approx(mean, abs=0.05 if mean < 100 else 0.53)
        assert measured.p50 == pytest.approx(median, abs=0.51)
        assert measured.p99 == pytest.approx(p99, abs=0.51)
        assert measured.max == maximum


def test_mooncake_batches_and_ids(shared_dir: Path) -> None:
    trace = open_trace(shared_dir / "traces/mooncake/conversation_trace.slice.jsonl")
    summary = describe(trace)
    assert summary.num_distinct_arrivals == 500
    content = trace.chunks[0].content
    assert content is not None
    assert content.block_tokens == 512
    seen = find_prefixes(trace).num_seen_tokens()
    prompts = trace.chunks[0].num_prompt_tokens
    assert (int(seen.sum()), int(prompts.sum())) == (20929408, 61644461)
    # A last block that is partial has an id of its own.
    assert int(np.where(seen == prompts, -(-seen // 512), seen // 512).sum()) == 40893


@pytest.mark.parametrize(
    ("name", "prompt", "output"),
    [
        (
            "arxiv_summarization_stats_llama2_tokenizer_filtered_v2",
            (2572, 2714, 3929, 4046),
            (303, 166, 3337, 4056),
        ),
        (
            "sharegpt_8k_filtered_stats_llama2_tokenizer",
            (2329, 1706, 7413, 8014),
            (441, 410, 999, 1023),
        ),
    ],
)
def test_lengths_without_arrivals(
    shared_dir: Path, name: str, prompt: tuple[int, ...], output: tuple[int, ...]
) -> None:
    summary = describe(open_trace(shared_dir / f"traces/vidur/{name}.slice.csv"))
    assert (summary.format, summary.num_requests, summary.saturated) == ("vidur", 8000, True)
    for measured, wanted in ((summary.prompt, prompt), (summary.output, output)):
        found = (measured.mean, measured.p50, measured.p99, measured.max)
        assert found == pytest.approx(wanted, abs=0.53)


def test_azure_2024_rows(shared_dir: Path) -> None:
    trace = open_trace(shared_dir / "traces/azure/AzureLLMInferenceTrace_code_1week.docrows.csv")
    arrival_ns = trace.chunks[0].arrival_ns
    assert trace.num_requests == 10
    # From 00:00:00.009930 to 23:59:59.929501 six days later.
    assert arrival_ns[1] == 7_405_000
    assert arrival_ns[-1] == 7 * 86_400 * 10**9 - 70_499_000 - 9_930_000


def test_azure_and_vidur_agree_on_the_same_requests(shared_dir: Path) -> None:
    azure = open_trace(shared_dir / "traces/azure/AzureLLMInferenceTrace_conv.slice.csv").chunks[0]
    vidur = open_trace(shared_dir / "traces/vidur/splitwise_conv.slice.csv").chunks[0]
    n = len(vidur.arrival_ns)
    assert (azure.num_prompt_tokens[:n] == vidur.num_prompt_tokens).all()
    assert (azure.num_output_tokens[:n] == vidur.num_output_tokens).all()
    # Vidur's copy was cut to microseconds.
    assert abs(azure.arrival_ns[:n] - vidur.arrival_ns).max() < 1000
