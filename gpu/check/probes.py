"""Inputs whose outputs are known without a reference, and pairs of runs that must agree.

Each probe takes a case and a backend's operations and returns an error and its tolerance.
"""

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch

from .attention import attention_with
from .case import Case
from .inputs import NAN, Inputs, make_inputs

Probe = Callable[[Case, ModuleType, str], tuple[float, float]]

CONSTANT = 1.375  # exact in every dtype


def constant_v(case: Case, ops: ModuleType, device: str) -> tuple[float, float]:
    """V the same for all tokens, another number for every KV head: the output is that number."""
    numbers = CONSTANT * (1 + torch.arange(case.num_kv_heads))
    inputs = _with_values(case, device, lambda tokens: numbers[None, :, None])
    out = _run(case, ops, inputs)
    expected = numbers.repeat_interleave(case.group)[None, :, None]
    seen = _rows_that_see(case)
    # Weights are rounded in the sum above and not in the one below; then the output is.
    tolerance = 2 * torch.finfo(case.torch_dtype).eps * float(expected.max())
    return _largest(out[seen] - expected), tolerance


def one_hot_v(case: Case, ops: ModuleType, device: str) -> tuple[float, float]:
    """V of token t is 1 in column t: the output is the weights, 0 where a token is not seen.

    Error: tokens seen that should not be, or the other way round, and rows that do not sum to 1.
    """
    assert max(case.context_lens) <= case.head_dim, case
    columns = torch.arange(case.head_dim)
    inputs = _with_values(
        case, device, lambda tokens: (tokens[:, None] == columns).double()[:, None]
    )
    out = _run(case, ops, inputs)
    wrong = 0
    starts = inputs.query_starts.tolist()
    for seq, context_len in enumerate(case.context_lens):
        num_queries = starts[seq + 1] - starts[seq]
        for row in range(num_queries):
            position = context_len - num_queries + row
            oldest = max(position - case.window + 1, 0) if case.window else 0
            seen = (columns >= oldest) & (columns <= position)
            weights = out[starts[seq] + row]
            wrong += int(((weights > 0) != seen).sum())
            if seen.any():
                wrong += int(((weights.sum(1) - 1).abs() > 0.01).sum())
    return float(wrong), 0.0


def zero_query(case: Case, ops: ModuleType, device: str) -> tuple[float, float]:
    """All scores equal: the output is the plain mean of the V rows seen, here small integers."""
    generator = torch.Generator().manual_seed(5)
    row_shape = (case.num_kv_heads, case.head_dim)
    inputs = _with_values(
        case,
        device,
        lambda tokens: torch.randint(-8, 9, (len(tokens), *row_shape), generator=generator),
    )
    inputs = replace(inputs, query=torch.zeros_like(inputs.query))
    out = _run(case, ops, inputs)
    starts = inputs.query_starts.tolist()
    error = 0.0
    for seq, (context_len, values) in enumerate(zip(case.context_lens, inputs.values, strict=True)):
        num_queries = starts[seq + 1] - starts[seq]
        for row in range(num_queries):
            end = context_len - num_queries + row + 1
            if end == 0:
                continue
            seen = values[max(end - case.window, 0) if case.window else 0 : end].double()
            mean = seen.mean(0).repeat_interleave(case.group, dim=0)
            error = max(error, _largest(out[starts[seq] + row] - mean))
    return error, torch.finfo(case.torch_dtype).eps * 8


def permuted_blocks(case: Case, ops: ModuleType, device: str) -> tuple[float, float]:
    """The same sequences in other physical blocks: not a bit of the output differs."""
    inputs = make_inputs(case, device)
    moved = _in_other_blocks(case, inputs)
    assert not torch.equal(moved.block_tables, inputs.block_tables)
    return _num_differing(_run(case, ops, inputs), _run(case, ops, moved)), 0.0


def repeated(case: Case, ops: ModuleType, device: str) -> tuple[float, float]:
    """The same launch again: not a bit differs."""
    inputs = make_inputs(case, device)
    return _num_differing(_run(case, ops, inputs), _run(case, ops, inputs)), 0.0


def rows_alone(case: Case, ops: ModuleType, device: str) -> tuple[float, float]:
    """Each sequence of the batch on its own: not a bit differs.

    torch sums in another order where rows are padded to another length: there, fp32 rounding.
    """
    inputs = make_inputs(case, device)
    out = _run(case, ops, inputs)
    starts = inputs.query_starts.tolist()
    tolerance, distances = 0.0, [0.0]
    for seq, context_len in enumerate(case.context_lens):
        rows = slice(starts[seq], starts[seq + 1])
        one = replace(
            case,
            context_lens=(context_len,),
            query_lens=(starts[seq + 1] - starts[seq],) if case.query_lens else (),
        )
        alone = replace(
            inputs,
            keys=inputs.keys[seq : seq + 1],
            values=inputs.values[seq : seq + 1],
            block_tables=inputs.block_tables[seq : seq + 1],
            context_lens=inputs.context_lens[seq : seq + 1],
            query=inputs.query[rows],
            query_starts=torch.tensor([0, starts[seq + 1] - starts[seq]]).to(inputs.query_starts),
        )
        apart = _run(one, ops, alone) - out[rows]
        distances.append(_largest(apart))
    if ops.__name__.endswith("torch_ops"):
        tolerance = 8 * torch.finfo(case.torch_dtype).eps * _largest(out)
    return max(distances), tolerance


def any_split(case: Case, ops: ModuleType, device: str) -> tuple[float, float]:
    """1 to 32 splits, and splits of a least length: equal to fp32 rounding."""
    case = replace(case, dtype="float32", num_kv_heads=1, context_lens=(0, 17, 40))
    inputs = make_inputs(case, device)
    whole = _run(replace(case, num_splits=1), ops, inputs)
    tolerance = 8 * torch.finfo(torch.float32).eps * _largest(whole)
    errors = [
        _largest(_run(replace(case, num_splits=n, min_split_tokens=least), ops, inputs) - whole)
        for n, least in ((2, 1), (3, 1), (4, 20), (7, 1), (16, 1), (32, 1))
    ]
    return max(errors), tolerance


def empty_part(case: Case, ops: ModuleType, device: str) -> tuple[float, float]:
    """Merging with parts that hold no key changes nothing; merging nothing but those gives 0."""
    generator = torch.Generator().manual_seed(6)
    wrong = 0.0
    for empty in (-torch.inf, torch.inf):
        part = torch.randn(4, case.num_heads, 1, case.head_dim, generator=generator)
        parts = torch.cat([torch.full_like(part, NAN), part, torch.full_like(part, NAN)], dim=2)
        lse = torch.tensor([empty, -3.25, empty]).repeat(4, case.num_heads, 1)
        lse[3] = empty
        out = torch.full((4, case.num_heads, case.head_dim), NAN, device=device)
        ops.merge_partials(parts.to(device), lse.to(device), out=out)
        expected = part[:, :, 0].clone()
        expected[3] = 0.0
        wrong += _num_differing(out.cpu(), expected)
    return wrong, 0.0


ATTENTION_PROBES: dict[str, Probe] = {
    "constant V": constant_v,
    "one-hot V": one_hot_v,
    "q = 0": zero_query,
    "permuted blocks": permuted_blocks,
    "repeated": repeated,
    "rows alone": rows_alone,
}
DECODE_PROBES: dict[str, Probe] = {"any split": any_split}
MERGE_PROBES: dict[str, Probe] = {"empty part": empty_part}


def probes_of(kernel: str) -> dict[str, Probe]:
    """The probes that mean something for a kernel."""
    if kernel == "paged_prefill":
        return ATTENTION_PROBES
    if kernel == "paged_decode":
        return ATTENTION_PROBES | DECODE_PROBES
    if kernel == "contiguous_decode":
        kept = {name: probe for name, probe in ATTENTION_PROBES.items() if "blocks" not in name}
        return kept | DECODE_PROBES
    return MERGE_PROBES if kernel == "merge_partials" else {}


def _with_values(case: Case, device: str, of_tokens: Callable[[torch.Tensor], Any]) -> Inputs:
    """The case's inputs with V replaced: `of_tokens` gives rows for token numbers."""
    inputs = make_inputs(case, device)
    for seq, context_len in enumerate(case.context_lens):
        tokens = torch.arange(context_len)
        inputs.values[seq].copy_(of_tokens(tokens))
        blocks = inputs.block_tables.cpu()[seq, tokens // case.block_size].long()
        kept = blocks < len(inputs.v_pool)  # others were freed, in front of the window
        slots = (tokens % case.block_size)[kept].to(device)
        inputs.v_pool[blocks[kept].to(device), slots] = inputs.values[seq][kept].to(device)
    return inputs


def _in_other_blocks(case: Case, inputs: Inputs) -> Inputs:
    """The same numbers, every block of the pool elsewhere."""
    num_blocks = inputs.k_pool.shape[0]
    order = torch.arange(num_blocks).roll(1)  # nothing stays where it was
    tables = inputs.block_tables.clone().cpu()
    used = tables < num_blocks
    tables[used] = order[tables[used].long()].to(torch.int32)
    k_pool, v_pool = inputs.k_pool.clone(), inputs.v_pool.clone()
    k_pool[order], v_pool[order] = inputs.k_pool, inputs.v_pool
    return replace(
        inputs, k_pool=k_pool, v_pool=v_pool, block_tables=tables.to(inputs.block_tables.device)
    )


def _run(case: Case, ops: ModuleType, inputs: Inputs) -> torch.Tensor:
    out = torch.full_like(inputs.query, NAN)
    return attention_with(case, ops, inputs, out).cpu().double()


def _rows_that_see(case: Case) -> torch.Tensor:
    """Rows of the query with at least one key."""
    query_lens = case.query_lens or (1,) * len(case.context_lens)
    pairs = zip(query_lens, case.context_lens, strict=True)
    seen = [row for query, context in pairs for row in [context > 0] * query]
    return torch.tensor(seen + [False] * case.num_padding)


def _largest(distance: torch.Tensor) -> float:
    return float(distance.abs().max()) if distance.numel() else 0.0


def _num_differing(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one != other).sum())
