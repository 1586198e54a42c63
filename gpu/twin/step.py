"""One engine step on real tensors: new KV is stored, then attention runs, layer after layer."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch

from .batch import Batch
from .content import TokenContent
from .layers import StepLayer


@dataclass(frozen=True)
class StepTensors:
    """A batch on the device. `key`, `value`, `query`: [num_layers, num_tokens, heads, head_dim].

    `slots` and tables have a row, or a table, for each group of layers. Prefills come first: `starts` and the first of
    `tables` and `context_lens` are theirs.
    """

    key: torch.Tensor
    value: torch.Tensor
    query: torch.Tensor
    slots: torch.Tensor
    prefill_tables: torch.Tensor
    prefill_starts: torch.Tensor
    prefill_lens: torch.Tensor
    decode_tables: torch.Tensor
    decode_lens: torch.Tensor
    num_prefill_tokens: int


def put_on_device(batch: Batch, content: TokenContent, device: str) -> StepTensors:
    """The tensors of a batch, with the K, V and queries of its tokens."""
    ids = torch.from_numpy(batch.ids).to(device)
    num = batch.num_prefills

    def to_device(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    return StepTensors(
        content.of(ids, "key"),
        content.of(ids, "value"),
        content.of(ids, "query"),
        to_device(batch.slots),
        to_device(batch.tables[:, :num]),
        to_device(batch.starts[: num + 1]),
        to_device(batch.context_lens[:num]),
        to_device(batch.tables[:, num:]),
        to_device(batch.context_lens[num:]),
        batch.num_prefill_tokens,
    )


def run_step(
    layers: Sequence[StepLayer], step: StepTensors, ops: ModuleType, out: torch.Tensor
) -> None:
    """Store the new KV and attend to each sequence's own, in every layer, into `out`.

    `ops`: `kernels` or `torch_ops`. `out`: like `step.query`. This is what a step's duration is measured of; nothing in
    it waits for the device.
    """
    num_prefill_tokens, scale = step.num_prefill_tokens, step.query.shape[-1] ** -0.5
    for number, (k_pool, v_pool, group, window) in enumerate(layers):
        ops.store_kv(step.key[number], step.value[number], k_pool, v_pool, step.slots[group])
        query, result = step.query[number], out[number]
        if num_prefill_tokens:
            ops.paged_prefill(
                query[:num_prefill_tokens],
                k_pool,
                v_pool,
                step.prefill_tables[group],
                step.prefill_starts,
                step.prefill_lens,
                scale=scale,
                window=window,
                out=result[:num_prefill_tokens],
            )
        if num_prefill_tokens < len(query):
            ops.paged_decode(
                query[num_prefill_tokens:],
                k_pool,
                v_pool,
                step.decode_tables[group],
                step.decode_lens,
                scale=scale,
                window=window,
                out=result[num_prefill_tokens:],
            )
