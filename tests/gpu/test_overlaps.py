"""What is written lies apart from everything else, or the call is refused; what is apart is taken.

local-inference-lab/vllm PR#468 (K65) is one of them: a merge that wrote over the parts that another
program still read.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from log_inputs import NAN, ints, normal

from kvtwin.gpu.arguments import SplitPlan, SwapMove, allocate_host_pool
from kvtwin.gpu.arguments.overlaps import check_apart
from kvtwin.gpu.errors import KernelInputError

NUM_BLOCKS, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM = 4, 4, 2, 16
SHAPE = (NUM_BLOCKS, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
Arguments = dict[str, Any]


def decode() -> Arguments:
    query = normal(1, 3, 4, HEAD_DIM)
    return {
        "query": query,
        "k_pool": normal(2, *SHAPE),
        "v_pool": normal(3, *SHAPE),
        "block_tables": torch.tensor([[3, 1], [0, 2], [2, 3]], dtype=torch.int32),
        "context_lens": ints(7, 3, 8),
        "scale": 0.25,
        "sinks": normal(4, 4),
        "out": torch.full_like(query, NAN),
        "split": SplitPlan(2, 1),
        "workspace": torch.full((3 * 4 * 2 * (HEAD_DIM + 2),), NAN),
    }


def contiguous() -> Arguments:
    arguments = decode()
    del arguments["block_tables"]
    k, v = arguments.pop("k_pool"), arguments.pop("v_pool")
    return arguments | {"k": k[:3], "v": v[:3], "context_lens": ints(4, 3, 1)}


def prefill() -> Arguments:
    arguments = decode()
    del arguments["split"], arguments["workspace"]
    return arguments | {"query_starts": ints(0, 1, 2, 3)}


def store() -> Arguments:
    return {
        "key": normal(1, 3, NUM_KV_HEADS, HEAD_DIM),
        "value": normal(2, 3, NUM_KV_HEADS, HEAD_DIM),
        "k_pool": normal(3, *SHAPE),
        "v_pool": normal(4, *SHAPE),
        "slot_mapping": torch.tensor([5, 0, 12]),
    }


def copy() -> Arguments:
    pools = {"k_pool": normal(3, *SHAPE), "v_pool": normal(4, *SHAPE)}
    return pools | {"pairs": torch.tensor([[0, 1], [2, 3]])}


def swap() -> Arguments:
    pools = {"k_pool": normal(3, *SHAPE), "v_pool": normal(4, *SHAPE)}
    host_pool = allocate_host_pool(pools["k_pool"], 2).zero_()
    return pools | {"host_pool": host_pool, "moves": [SwapMove(True, 0, 1)]}


def merge() -> Arguments:
    return {
        "partials": normal(1, 3, 2, 4, HEAD_DIM),
        "lse": normal(2, 3, 2, 4),
        "sinks": normal(3, 2),
        "out": torch.full((3, 2, HEAD_DIM), NAN),
    }


# Operation, its arguments, what it writes.
OPERATIONS: dict[str, tuple[Callable[[], Arguments], tuple[str, ...]]] = {
    "paged_decode": (decode, ("out",)),
    "contiguous_decode": (contiguous, ("out",)),
    "paged_prefill": (prefill, ("out",)),
    "store_kv": (store, ("k_pool", "v_pool")),
    "copy_blocks": (copy, ("k_pool", "v_pool")),
    "swap_blocks": (swap, ("k_pool", "v_pool", "host_pool")),
    "merge_partials": (merge, ("out",)),
}


def pairs(operation: str) -> list[tuple[str, str, str]]:
    """Operation, what it writes, and each other tensor of the call."""
    make, written = OPERATIONS[operation]
    tensors = [name for name, value in make().items() if isinstance(value, torch.Tensor)]
    return [
        (operation, output, other)
        for output in written
        for other in tensors
        if other not in (output, "workspace")
    ]


def placed(tensor: torch.Tensor, memory: torch.Tensor, first_byte: int) -> torch.Tensor:
    """The tensor moved to a place of `memory`."""
    num_bytes = tensor.numel() * tensor.element_size()
    moved = memory[first_byte : first_byte + num_bytes].view(tensor.dtype).view(tensor.shape)
    return moved.copy_(tensor)


def snapshot(arguments: Arguments) -> list[torch.Tensor]:
    tensors = (value for value in arguments.values() if isinstance(value, torch.Tensor))
    return [tensor.contiguous().view(torch.uint8).clone() for tensor in tensors]


@pytest.mark.parametrize(
    ("operation", "output", "other"), [pair for name in OPERATIONS for pair in pairs(name)]
)
def test_memory_that_is_shared_is_refused(
    ops: Any, operation: str, output: str, other: str
) -> None:
    """The other tensor begins in the last 8 bytes of the output, or just behind it."""
    make, _ = OPERATIONS[operation]
    arguments, memory = make(), torch.zeros(1 << 16, dtype=torch.uint8)
    end = arguments[output].numel() * arguments[output].element_size()
    arguments[output] = placed(arguments[output], memory, 0)
    arguments[other] = placed(arguments[other], memory, end)
    getattr(ops, operation)(**arguments)
    arguments = make()
    arguments[output] = placed(arguments[output], memory, 0)
    arguments[other] = placed(arguments[other], memory, end - 8)
    before = snapshot(arguments)
    names = {f"{output} shares memory with {other}", f"{other} shares memory with {output}"}
    with pytest.raises(KernelInputError, match="|".join(map(re.escape, names))) as raised:
        getattr(ops, operation)(**arguments)
    assert "\n" not in str(raised.value)
    assert all(map(torch.equal, before, snapshot(arguments)))


@pytest.mark.parametrize("operation", ["paged_decode", "contiguous_decode"])
def test_a_workspace_lies_apart(on: dict[str, Any], operation: str) -> None:
    """The rest of a workspace that is too large is nobody's."""
    kernel = getattr(on["triton-interpret"].ops, operation)
    make, _ = OPERATIONS[operation]
    arguments = make()
    names = [n for n, v in arguments.items() if isinstance(v, torch.Tensor) and n != "workspace"]
    for name in names:
        arguments, memory = make(), torch.zeros(1 << 16, dtype=torch.uint8)
        num_bytes = 4 * arguments["workspace"].numel()
        arguments["workspace"] = memory.view(torch.float32)
        arguments[name] = placed(arguments[name], memory, num_bytes)
        kernel(**arguments)
        arguments[name] = placed(
            make()[name], memory, num_bytes - 4 * arguments[name].element_size()
        )
        with pytest.raises(KernelInputError, match=f"workspace shares memory with {name}"):
            kernel(**arguments)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_element_that_is_there_twice_is_not_written(ops: Any, operation: str) -> None:
    """Heads one head dim apart, and tokens, too; heads that are half a row apart are refused as rows."""
    make, written = OPERATIONS[operation]
    for name in written[:2]:
        arguments = make()
        tensor = arguments[name]
        strides = [HEAD_DIM] * (tensor.dim() - 1) + [1]
        arguments[name] = tensor.as_strided(tensor.shape, strides)
        with pytest.raises(KernelInputError, match=f"{name} has strides .*must not overlap"):
            getattr(ops, operation)(**arguments)
        arguments[name] = tensor[:1].expand(tensor.shape)
        with pytest.raises(KernelInputError, match=f"{name} has stride 0 in dimension 0"):
            getattr(ops, operation)(**arguments)


@pytest.mark.parametrize("operation", ["store_kv", "copy_blocks", "swap_blocks"])
def test_pools_in_one_allocation_are_taken_if_their_elements_are_apart(
    ops: Any, operation: str
) -> None:
    """K and V by block, by slot and by head; and V one element behind the beginning of K."""
    make, _ = OPERATIONS[operation]
    for dim in range(3):
        both = torch.empty(*SHAPE[:dim], 2, *SHAPE[dim:])
        arguments = make()
        pools = both.unbind(dim)
        for name, pool in zip(("k_pool", "v_pool"), pools, strict=True):
            arguments[name] = pool.copy_(arguments[name])
        getattr(ops, operation)(**arguments)
        arguments["v_pool"] = pools[0].as_strided(SHAPE, pools[0].stride(), 1)
        with pytest.raises(KernelInputError, match="k_pool shares memory with v_pool"):
            getattr(ops, operation)(**arguments)


def _strides(sizes: Sequence[int], gaps: Sequence[int], order: Sequence[int]) -> list[int]:
    strides, reach = [0] * len(sizes), 1
    for dim, gap in zip(order, gaps, strict=True):
        strides[dim] = reach + gap
        reach = strides[dim] * sizes[dim]
    return strides


@settings(max_examples=examples(40))
@given(st.data())
def test_two_views_share_memory_if_an_element_does(data: st.DataObject) -> None:
    """Against the sets of all their addresses."""
    memory = torch.arange(20_000)
    views = []
    for _ in range(2):
        sizes = data.draw(st.lists(st.integers(1, 4), min_size=3, max_size=3))
        gaps = data.draw(st.lists(st.integers(0, 5), min_size=3, max_size=3))
        strides = _strides(sizes, gaps, data.draw(st.permutations(range(3))))
        views.append(memory.as_strided(sizes, strides, data.draw(st.integers(0, 60))))
    shares = np.intersect1d(*(view.flatten().numpy() for view in views)).size > 0
    try:
        check_apart({"one": views[0]}, {"other": views[1]})
        is_refused = False
    except KernelInputError:
        is_refused = True
    assert is_refused == shares
