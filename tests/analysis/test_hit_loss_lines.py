"""What is said of hits and losses whose every number is known."""

from typing import Any

import pytest

from kvtwin.analysis.hit_losses import loss_facts, loss_lines, verdict
from kvtwin.traces.hit_losses import CurvePoint, HitLosses


def losses(**changed: Any) -> HitLosses:
    """Of 10,000 prompt tokens 9,000 were sent before; what is not lost hits."""
    lost = {
        f"lost_to_{cause}": changed.pop(cause, 0)
        for cause in ("blocks", "last_token", "capacity", "order")
    }
    num_infinite = changed.pop("num_infinite_hit_tokens", 9000)
    made = {
        "block_tokens": 16,
        "num_blocks": 10,
        "known_block_tokens": 1,
        "num_prompt_tokens": 10_000,
        "longest_shared_prefix": 500,
        "num_infinite_hit_tokens": num_infinite,
        "num_hit_tokens": num_infinite - sum(lost.values()),
        "curve": (CurvePoint(1, 200), CurvePoint(20, 4100), CurvePoint(300, 8000)),
        "blocks_for_most": 290,
    }
    return HitLosses(**made | lost | changed)


def test_every_step_has_its_share_of_the_prompt_tokens() -> None:
    lines = loss_lines(losses(blocks=40, last_token=300, capacity=2000, order=1234))
    assert [(line[46:62].strip(), line[62:].strip()) for line in lines[:7]] == [
        ("10,000", "100.00 %"),
        ("9,000", "90.00 %"),
        ("-40", "-0.40 %"),
        ("-300", "-3.00 %"),
        ("-2,000", "-20.00 %"),
        ("-1,234", "-12.34 %"),
        ("5,426", "54.26 %"),
    ]


def test_bars_are_as_long_as_what_a_capacity_hits() -> None:
    bars = loss_lines(losses(capacity=1000))[8:11]
    assert [line.split("%")[1].strip() for line in bars] == ["#", "#" * 20, "#" * 40]


@pytest.mark.parametrize(
    ("lost", "causes"),
    [
        (
            {"order": 4000, "capacity": 1500},
            "LRU had evicted them where Belady's order would not (40.00 %), the next that they do not fit into the "
            "cache (15.00 %)",
        ),
        (
            {"last_token": 990, "blocks": 1010},
            "they are behind the last full block of 16 (10.10 %), the next that nobody sent them before (10.00 %)",
        ),
        (
            {"last_token": 1001, "blocks": 999},
            "the last token of a prompt is always computed (10.01 %), the next that nobody sent them before (10.00 %)",
        ),
        # From a tenth of a percent on a cause is worth a word.
        ({"num_infinite_hit_tokens": 9990, "order": 9}, "nobody sent them before (0.10 %)"),
        ({"num_infinite_hit_tokens": 9991, "order": 9}, ""),
    ],
)
def test_the_main_causes_are_named(lost: dict[str, int], causes: str) -> None:
    of_misses = f"the main cause of misses is that {causes}; " if causes else ""
    assert verdict(losses(**lost)).endswith(
        f" % of the prompt tokens; {of_misses}290 blocks get 90 % of the hits of a cache without end."
    )


@pytest.mark.parametrize("grain", [None, 1, 2, 512])
def test_a_trace_that_knows_prompts_in_steps_says_so(grain: int | None) -> None:
    notes = [line for line in loss_lines(losses(known_block_tokens=grain)) if "in steps" in line]
    said = [f"note: the trace says what prompts are made of in steps of {grain} tokens"]
    assert notes == (said if grain in (2, 512) else [])


def test_scripts_get_the_verdict_too() -> None:
    found = losses(order=4000)
    assert loss_facts(found)["verdict"] == verdict(found) == loss_lines(found)[-1]
