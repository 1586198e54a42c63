"""What earlier versions read and drew is read and drawn still: same columns, to the nanosecond."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from kvtwin.traces import Trace, open_trace, synthesize

# The beginning of the SHA-256 of the four columns as int64, one behind the other, as version a7b13e3 had them: it read
# whole files at once, and kept block ids as they came.
FILES = {
    "azure/AzureLLMInferenceTrace_code.slice.csv": "c240edf957ba6664",
    "azure/AzureLLMInferenceTrace_code_1week.docrows.csv": "048f03d5ab33a5b1",
    "azure/AzureLLMInferenceTrace_conv.slice.csv": "491e821c2450aad7",
    "mooncake/arxiv_mooncake_trace.excerpt.jsonl": "c04606a97efc94ae",
    "mooncake/conversation_trace.slice.jsonl": "bfd88a69f081f96d",
    "mooncake/synthetic_trace.slice.jsonl": "aa5bb1003b9082a0",
    "vidur/splitwise_conv.slice.csv": "32a9e899c85e9b8e",
}
WORKLOADS = {
    "sharegpt-like": "388b29e0ddb8c727",
    "alpaca-like": "109ab68df436b626",
}


def digest(trace: Trace) -> str:
    columns = ("arrival_ns", "num_prompt_tokens", "num_output_tokens", "max_tokens")
    hashed = hashlib.sha256()
    for name in columns:
        hashed.update(np.concatenate([getattr(chunk, name) for chunk in trace.chunks]).tobytes())
    return hashed.hexdigest()[:16]


@pytest.mark.parametrize("name", FILES)
def test_files(shared_dir: Path, name: str) -> None:
    assert digest(open_trace(shared_dir / "traces" / name)) == FILES[name]


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads(name: str) -> None:
    assert digest(synthesize(name, 500, 3, rate=2.0, burstiness=0.5)) == WORKLOADS[name]
