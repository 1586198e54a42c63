"""Checks and probes fail for operations that are wrong on purpose."""

from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from kvtwin.gpu import torch_ops
from kvtwin.gpu.check import Backend, Case, run_case, run_probe

DECODE = Case("paged_decode", group=3, block_size=5)
PREFILL = Case("paged_prefill", context_lens=(9, 16, 40), query_lens=(5, 16, 9))


def wrong(name: str, change: Any) -> Backend:
    """The torch operations with one of them changed: `change(operation, arguments)` is called."""
    operation = getattr(torch_ops, name)
    ops = SimpleNamespace(**vars(torch_ops))
    setattr(ops, name, lambda *args, **named: change(operation, *args, **named))
    ops.__name__ = "wrong torch_ops"
    module: Any = ops
    return Backend("torch", module, "cpu")


def off_by_one_window(operation: Any, **arguments: Any) -> Any:
    return operation(**arguments | {"window": arguments["window"] + 1})


def swapped_pools(operation: Any, **arguments: Any) -> Any:
    pools = {"k_pool": arguments["v_pool"], "v_pool": arguments["k_pool"]}
    return operation(**arguments | pools)


def one_token_less(operation: Any, **arguments: Any) -> Any:
    lens = (arguments["context_lens"] - 1).clamp(min=0)
    return operation(**arguments | {"context_lens": lens})


def no_sinks(operation: Any, **arguments: Any) -> Any:
    return operation(**arguments | {"sinks": None})


def other_scale(operation: Any, **arguments: Any) -> Any:
    return operation(**arguments | {"scale": arguments["scale"] * 1.02})


def every_entry_followed(operation: Any, **arguments: Any) -> Any:
    """Also in front of a window, where blocks may have been freed, and K is masked."""
    for table, context_len in zip(
        arguments["block_tables"], arguments["context_lens"].tolist(), strict=True
    ):
        num_blocks = -(-context_len // arguments["k_pool"].shape[1])
        arguments["k_pool"].index_select(0, table[:num_blocks])
    return operation(**arguments)


def one_nan(operation: Any, **arguments: Any) -> Any:
    out = operation(**arguments)
    out[-1, -1, -1] = float("nan")
    return out


def heads_interleaved(operation: Any, **arguments: Any) -> Any:
    query = arguments["query"]
    mixed = query.view(len(query), 3, 2, -1).transpose(1, 2).reshape(query.shape)
    out = arguments["out"]
    result = operation(**arguments | {"query": mixed})
    out.copy_(result.view(len(query), 2, 3, -1).transpose(1, 2).reshape(query.shape))
    return out


@pytest.mark.parametrize(
    ("case", "change"),
    [
        (replace(DECODE, window=16), off_by_one_window),
        (replace(DECODE, window=39, dtype="bfloat16"), off_by_one_window),
        (DECODE, swapped_pools),
        (DECODE, one_token_less),
        (replace(DECODE, dtype="bfloat16"), one_token_less),
        (replace(DECODE, sinks=True), no_sinks),
        (DECODE, other_scale),
        (replace(DECODE, window=16), every_entry_followed),
        (replace(PREFILL, window=4), every_entry_followed),
        (DECODE, one_nan),
        (DECODE, heads_interleaved),
        (replace(PREFILL, window=4), off_by_one_window),
        (replace(PREFILL, soft_cap=2.0), other_scale),
        (PREFILL, one_nan),
    ],
)
def test_a_wrong_operation_fails_its_case(case: Case, change: Any) -> None:
    right = run_case(case, Backend("torch", torch_ops, "cpu"))
    assert right.passed, right.verdict
    assert not run_case(case, wrong(case.kernel, change)).passed


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("context_len", [300, 257])
def test_one_wrong_key_of_many_fails(context_len: int, dtype: str) -> None:
    """The last of a tile is read as the one before it, among rows of few keys and large outputs."""

    def repeats_a_key(operation: Any, **arguments: Any) -> Any:
        table = arguments["block_tables"][arguments["context_lens"].tolist().index(context_len)]
        pools = {name: arguments[name].clone() for name in ("k_pool", "v_pool")}
        for pool in pools.values():
            pool[table[3], 15] = pool[table[3], 14]  # token 63 of blocks of 16
        return operation(**arguments | pools)

    case = Case("paged_decode", dtype, context_lens=(300, 257, 64, 1))
    assert run_case(case, Backend("torch", torch_ops, "cpu")).passed
    assert not run_case(case, wrong("paged_decode", repeats_a_key)).passed


@pytest.mark.parametrize(
    ("probe", "case", "change"),
    [
        ("constant V", DECODE, heads_interleaved),
        ("one-hot V", replace(DECODE, window=16), off_by_one_window),
        ("one-hot V", replace(PREFILL, window=16), off_by_one_window),
        ("q = 0", replace(DECODE, window=16), off_by_one_window),
        ("q = 0", DECODE, one_token_less),
    ],
)
def test_a_wrong_operation_fails_its_probe(probe: str, case: Case, change: Any) -> None:
    right = run_probe(probe, case, Backend("torch", torch_ops, "cpu"))
    assert right.passed, right.verdict
    assert not run_probe(probe, case, wrong(case.kernel, change)).passed


def test_results_that_depend_on_place_fail() -> None:
    def by_block(operation: Any, **arguments: Any) -> Any:
        out = operation(**arguments)
        out += arguments["block_tables"][:, 0].remainder(7).view(-1, 1, 1)
        return out

    def random(operation: Any, **arguments: Any) -> Any:
        out = operation(**arguments)
        return out.add_(torch.rand_like(out))

    def by_row(operation: Any, **arguments: Any) -> Any:
        out = operation(**arguments)
        return out.add_(torch.arange(len(out)).view(-1, 1, 1))

    for probe, change in (
        ("permuted blocks", by_block),
        ("repeated", random),
        ("rows alone", by_row),
    ):
        assert not run_probe(probe, DECODE, wrong("paged_decode", change)).passed, probe


def test_splits_that_differ_fail() -> None:
    def by_split(operation: Any, **arguments: Any) -> Any:
        out = operation(**arguments)
        return out.mul_(1 + 1e-5 * arguments["split"].num_splits)

    assert not run_probe("any split", DECODE, wrong("paged_decode", by_split)).passed


def test_a_merge_that_reads_empty_parts_fails() -> None:
    def reads_all(operation: Any, partials: Any, lse: Any, **named: Any) -> Any:
        named["out"].copy_((partials * torch.softmax(lse, 2)[..., None]).sum(2))
        return named["out"]

    case = Case("merge_partials", num_splits=3)
    assert not run_case(case, wrong("merge_partials", reads_all)).passed
    assert not run_probe("empty part", case, wrong("merge_partials", reads_all)).passed


def merged_by(weights_of: Any) -> Backend:
    """A merge of parts that have numbers with weights of its own, [tokens, heads, parts] as lse."""

    def merge(operation: Any, partials: Any, lse: Any, **named: Any) -> Any:
        values = partials.masked_fill(lse.isinf()[..., None], 0.0)
        return named["out"].copy_((values * weights_of(lse)[..., None]).sum(2))

    return wrong("merge_partials", merge)


def test_a_merge_that_overflows_for_hopeless_scores_fails() -> None:
    """It subtracts the smallest finite lse in place of the largest, which goes well among like ones."""

    def from_the_smallest(lse: Any) -> Any:
        smallest = lse.masked_fill(lse.isinf(), torch.inf).amin(2, keepdim=True)
        powers = (lse - smallest).exp().masked_fill(lse.isinf(), 0.0)
        return powers / powers.sum(2, keepdim=True).clamp(min=1.0)

    case = Case("merge_partials", num_splits=3)
    assert run_probe("empty part", case, merged_by(from_the_smallest)).passed
    assert not run_case(case, merged_by(from_the_smallest)).passed


def test_a_merge_that_knows_no_row_of_inf_fails() -> None:
    """Parts of +inf are taken out, but rows that have nothing else are not known to be empty."""

    def without_inf(lse: Any) -> Any:
        weights = torch.softmax(lse.masked_fill(lse == torch.inf, -torch.inf), 2)
        return weights.masked_fill((lse == -torch.inf).all(2, keepdim=True), 0.0)

    case = Case("merge_partials", num_splits=3)
    assert not run_probe("empty part", case, merged_by(without_inf)).passed


@pytest.mark.parametrize("kernel", ["store_kv", "copy_blocks", "swap_blocks"])
def test_one_wrong_byte_fails(kernel: str) -> None:
    def spills(operation: Any, *args: Any, **named: Any) -> None:
        operation(*args, **named)
        pool = next(arg for arg in args if arg.dim() == 4)
        pool[-1, -1, -1, -1] = 0.5

    case = Case(kernel, context_lens=(0, 3, 17))
    assert run_case(case, Backend("torch", torch_ops, "cpu")).passed
    assert run_case(case, wrong(kernel, spills)).error > 0


def test_swaps_in_another_order_fail() -> None:
    def outs_first(operation: Any, k: Any, v: Any, host: Any, moves: Any) -> None:
        operation(k, v, host, sorted(moves, key=lambda move: not move.is_out))

    assert not run_case(Case("swap_blocks"), wrong("swap_blocks", outs_first)).passed


def test_an_exception_is_a_failure_with_its_reason() -> None:
    def raises(operation: Any, **arguments: Any) -> Any:
        raise RuntimeError("no\nmore")

    result = run_case(DECODE, wrong("paged_decode", raises))
    assert not result.passed
    assert result.verdict == "FAIL: RuntimeError: no more"


@pytest.mark.parametrize("more", [-1, 1])
def test_bytes_that_the_model_does_not_have_fail(
    on: dict[str, Any], more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a kernel reads more than the model says, or less."""
    from kvtwin.gpu.check import judge

    model = judge.traffic_of

    def changed(case: Case, tuning: Any) -> Any:
        traffic = model(case, tuning)
        traffic.read_bytes["k"] += more
        return traffic

    monkeypatch.setattr(judge, "traffic_of", changed)
    result = run_case(Case("paged_decode"), on["triton-interpret"])
    assert not result.passed
    assert "bytes of k read, the model has" in result.problem


def test_a_read_out_of_range_fails(on: dict[str, Any]) -> None:
    """The interpreter would read whatever lies there."""

    def far_entry(operation: Any, **arguments: Any) -> Any:
        tables = arguments["block_tables"].clone()
        tables[5, 0] = arguments["k_pool"].shape[0]
        return operation(**arguments | {"block_tables": tables, "check_table": False})

    backend = on["triton-interpret"]
    ops = SimpleNamespace(**vars(backend.ops))
    ops.paged_decode = lambda **named: far_entry(backend.ops.paged_decode, **named)
    module: ModuleType | Any = ops
    result = run_case(Case("paged_decode"), Backend(backend.name, module, "cpu"))
    assert not result.passed
    assert "MemoryFault" in result.problem
