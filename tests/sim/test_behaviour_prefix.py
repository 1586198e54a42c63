"""Whether a prefix hits that alternates with others, from what a run has recorded."""

from itertools import pairwise
from pathlib import Path

import pytest
from behaviour_cases import CASES
from hand_runs import STEP_NS, run

C14 = CASES["C14"]
RUN = C14["run"]
MAIN = 0
PREFIXES = [MAIN, 1, MAIN, 2, MAIN, 3] * RUN["num_rounds"]  # streams, a request each
# Of a budget that holds any prompt, a request takes a step for each output token.
GAPS = {"one at a time": RUN["output_tokens"] + 1, "overlapping": RUN["output_tokens"] - 2}


def prefix_tokens(stream: int) -> int:
    return C14["main_prefix_tokens"] if stream == MAIN else C14["other_prefixes_tokens"]


@pytest.mark.parametrize("arrivals", GAPS)
@pytest.mark.parametrize("num_slots", [1, 2, 4])
def test_alternating_prefixes(num_slots: int, arrivals: str, tmp_path: Path) -> None:
    requests = [
        (
            number * GAPS[arrivals] * STEP_NS,
            prefix_tokens(stream) + RUN["new_tokens"],
            RUN["output_tokens"],
        )
        for number, stream in enumerate(PREFIXES)
    ]
    found = run(
        "slots",
        requests,
        tmp_path,
        RUN["pool_tokens"],
        contents=[((stream, 0, prefix_tokens(stream)),) for stream in PREFIXES],
        model="llama-3.1-8b",
        max_model_len=RUN["max_model_len"],
        max_num_seqs=num_slots,
        max_num_batched_tokens=RUN["max_model_len"],
    )
    overlaps = [
        after["admitted_ns"] < before["finished_ns"] for before, after in pairwise(found.requests)
    ]
    assert overlaps == [arrivals == "overlapping" and num_slots > 1] * len(overlaps)

    expected, seen = [], set()
    for stream in PREFIXES:
        all_hit = num_slots == 4 and C14["all_hit_after_first_with_4"]
        hits = all_hit or (stream == MAIN and C14[f"main_hits_with_{num_slots}"])
        expected.append(prefix_tokens(stream) if hits and stream in seen else 0)
        seen.add(stream)
    assert [request["num_hit_tokens"] for request in found.requests] == expected
    assert found.summary["hit_tokens"] == sum(expected)
    num_prompt_tokens = sum(num_prompt for _, num_prompt, _ in requests)
    assert found.summary["num_prefill_tokens"] == num_prompt_tokens - sum(expected)
    assert found.summary["hit_share_of_prompt_tokens"] == sum(expected) / num_prompt_tokens
