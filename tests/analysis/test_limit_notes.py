"""Limits of a step that an engine sets otherwise where nothing is said."""

from pathlib import Path
from typing import Any

import pytest

from kvtwin.analysis.options import Inputs
from kvtwin.analysis.setting import load_config
from kvtwin.analysis.sizing.options import SizeInputs
from kvtwin.analysis.sizing.setting import load_setting

TOKENS = "--max-num-batched-tokens is 8,192 by default here; vllm serve takes 2,048 on L40S, and so does kvtwin size"
SEQS = "--max-num-seqs is 256 by default here; vllm serve takes 1,024 on H100-SXM, and so does kvtwin size"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"gpu": "l40s"}, [TOKENS]),
        ({"gpu": "h100"}, [SEQS]),
        ({"gpu": "l40s", "max_num_batched_tokens": 8192}, []),
        ({"gpu": "h100", "max_num_seqs": 256}, []),
        # An engine lowers its requests to the tokens of a step, as a run does.
        ({"gpu": "h100", "max_num_batched_tokens": 128}, []),
        ({"gpu": "h100", "max_num_batched_tokens": 512}, [SEQS.replace("1,024", "512")]),
    ],
)
def test_a_limit_that_an_engine_sets_otherwise_is_noted(
    flags: dict[str, Any], told: list[str]
) -> None:
    _, notes = load_config(Inputs(model="llama-3.1-8b", **flags), policy=None)
    assert [note.partition(":")[0] for note in notes] == told


def test_a_limit_that_a_file_gives_is_not_noted(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('model = "opt-13b"\ngpu = "l4"\n')
    assert len(load_config(Inputs(config=path), policy=None)[1]) == 1
    path.write_text(path.read_text() + "max-num-batched-tokens = 8192\n")
    assert load_config(Inputs(config=path), policy=None)[1] == []


def test_the_reference_setting_has_the_limits_that_it_has() -> None:
    assert load_config(Inputs(), policy=None)[1] == []
    assert load_config(Inputs(model="opt-13b", gpu="a100-40gb"), policy=None)[1] != []


@pytest.mark.parametrize("gpu", ["l40s", "l4", "a100-80gb", "h100", "b200"])
@pytest.mark.parametrize("given", [{}, {"max_num_batched_tokens": 512}])
def test_what_is_noted_of_a_sizing_is_what_it_takes(gpu: str, given: dict[str, int]) -> None:
    asked = {"model": "llama-3.1-8b", "gpu": gpu, **given}
    sized = load_setting(SizeInputs(**asked), None)
    limits = {
        "--max-num-seqs": sized.accounting.max_num_seqs(sized.deployment),
        "--max-num-batched-tokens": sized.accounting.max_num_batched_tokens(sized.deployment),
    }
    config, notes = load_config(Inputs(**asked), policy=None)
    taken = dict(zip(limits, (config.max_num_seqs, config.max_num_batched_tokens), strict=True))
    assert len(notes) == sum(limits[flag] != taken[flag] for flag in limits)
    for note in notes:
        assert f"vllm serve takes {limits[note.split()[0]]:,} on" in note
