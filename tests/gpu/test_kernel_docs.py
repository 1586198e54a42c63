"""The example of docs/kernels.md runs, and its numbers are right."""

import re
from pathlib import Path
from typing import Any

import torch

from kvtwin.gpu.check import KERNELS
from kvtwin.gpu.check.reference import attention

TEXT = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text(encoding="utf-8")
CODE = re.findall(r"^```python\n(.*?)^```$", TEXT, re.M | re.S)


def test_the_example_computes_attention() -> None:
    code, _ = CODE
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(code, names)
    arrays = [names[name].double().numpy() for name in ("query", "key", "value")]
    reference = torch.from_numpy(attention(*arrays, scale=0.125))
    assert (names["prompt"] - reference).abs().max() < 1e-5
    assert (names["last"] - reference[-1]).abs().max() < 1e-5


def test_the_interpreted_example_computes_attention() -> None:
    _, code = CODE
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(code, names)
    rows = [(5, slot) for slot in range(16)] + [(2, slot) for slot in range(4)]
    blocks, slots = torch.tensor(rows).T
    kv = [names[pool][blocks, slots].double().numpy() for pool in ("k_pool", "v_pool")]
    reference = torch.from_numpy(attention(names["query"].double().numpy(), *kv, scale=0.125))
    # bf16 keeps 8 bits: outputs of about 1 are rounded by at most 2^-8, weights likewise.
    assert (names["output"].double() - reference).abs().max() < 2**-6


def test_every_operation_is_in_the_table() -> None:
    for kernel in KERNELS:
        assert f"| `{kernel}` |" in TEXT
