"""What the watermark of `vllm-v0` holds back: by hand, and the storm of preemptions that it prevents."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hand_runs import run
from random_cases import config_of, trace_of

from kvtwin.sim import simulate


@pytest.mark.parametrize(
    ("num_prompt_tokens", "watermark", "finished_steps", "external"),
    [
        (197, None, [1, 1], [0]),
        (198, None, [1, 2], [2, 0]),
        (199, None, [1, 2], [2, 0]),
        (199, 0.0, [1, 1], [0]),
    ],
)
def test_an_admission_leaves_one_percent_free(
    num_prompt_tokens: int,
    watermark: float | None,
    finished_steps: list[int],
    external: list[int],
    tmp_path: Path,
) -> None:
    """299 blocks of a token, of which int(2.99) stay free unless told otherwise: 297 for both, though nobody runs."""
    made = run(
        "vllm-v0",
        [(0, 100, 1), (0, num_prompt_tokens, 1)],
        tmp_path,
        num_slots=299,
        watermark=watermark,
    )
    assert made.finished_steps == finished_steps
    assert [row["external_slots"] for row in made.timeline] == external


def test_a_growth_takes_what_the_watermark_holds(tmp_path: Path) -> None:
    """10 blocks of a token, 2 of them behind a watermark of 0.2; two requests of 4 and 3 tokens.

    Their prompts leave those 2, and their first decodes take them. The next step finds none, so the second request
    leaves with its 5 tokens. They and the one that they gave last are a prompt in the step after, when the first
    request has ended, and give its last token.
    """
    made = run("vllm-v0", [(0, 4, 3), (0, 4, 3)], tmp_path, num_slots=10, watermark=0.2)
    assert made.summary["preemptions"] == 1
    assert made.summary["recomputed_tokens"] == 5
    assert made.finished_steps == [3, 4]


def test_what_can_never_be_admitted_beside_the_watermark_is_rejected(tmp_path: Path) -> None:
    """Of 300 blocks of 2 tokens 3 are kept, even in an empty pool: who needs 298 is turned away."""
    made = run("vllm-v0", [(0, 594, 1), (0, 595, 1)], tmp_path, num_slots=600, block_size=2)
    assert [row["status"] for row in made.requests] == ["finished", "rejected"]
    (rejection,) = made.summary["rejections"]
    assert (rejection["row"], rejection["value"], rejection["limit"]) == (1, 596, 594)


@pytest.mark.parametrize("seed", range(4))
def test_the_more_is_held_back_the_fewer_are_preempted(seed: int, tmp_path: Path) -> None:
    """A prompt goes before all decodes, so without a watermark who was preempted comes back at once, takes the blocks
    of the next step, and has to leave again: one request of 150 up to 17 times. Held-back blocks are room to grow.
    """
    rng = np.random.default_rng(seed)
    lengths = np.exp(rng.normal(np.log((10, 60)), 0.9, (150, 2))).astype(int).clip(1, 400)
    trace = trace_of([(0, *pair) for pair in lengths.tolist()])
    totals, most = [], []
    for watermark in (0.0, None, 0.03):  # None: the policy's own
        config = config_of(
            "vllm-v0",
            num_gpu_blocks_override=300,
            block_size=8,
            max_model_len=900,
            watermark=watermark,
        )
        summary = simulate(trace, config, tmp_path)
        assert summary["num_finished"] == 150
        requests = pq.read_table(tmp_path / "requests.parquet").to_pydict()
        totals.append((summary["preemptions"], summary["recomputed_tokens"]))
        most.append(max(requests["num_preemptions"]))
    assert totals[0] > totals[1] > totals[2]
    assert totals[0][1] > totals[1][1] > totals[2][1]
    assert most[0] > most[2]
