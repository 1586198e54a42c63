"""One engine step on real tensors: new KV is stored, then attention runs, layer after layer."""

from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch

from .batch import Batch
from .content import TokenContent

Layers = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class StepTensors:
    """A batch on the device. `key`, `value`, `query`: [num_layers, num_tokens, heads, head_dim].

    Prefills come first: `starts` and the first of `tables` and `context_lens` are theirs.
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
        to_device(batch.tables[:num]),
        to_device(batch.starts[: num + 1]),
        to_device(batch.context_lens[:num]),
        to_device(batch.tables[num:]),
        to_device(batch.context_lens[num:]),
        batch.num_prefill_tokens,
    )


def run_step(layers: Layers, step: StepTensors, ops: ModuleType, out: torch.Tensor) -> None:
    """Store the new KV and attend to each sequence's own, in every layer, into `out`.

    `layers`: the pool's (K, V). `ops`: `kernels` or `torch_ops`. `out`: like `step.query`. This is
    what a step's duration is measured of; nothing in it waits for the device.
    """
    num_prefill_tokens, scale = step.num_prefill_tokens, step.query.shape[-1] ** -0.5
    for number, (k_pool, v_pool) in enumerate(layers):
        ops.store_kv(step.key[number], step.value[number], k_pool, v_pool, step.slots)
        query, result = step.query[number], out[number]
        if num_prefill_tokens:
            ops.paged_prefill(
                query[:num_prefill_tokens],
                k_pool,
                v_pool,
                step.prefill_tables,
                step.prefill_starts,
                step.prefill_lens,
                scale=scale,
                out=result[:num_prefill_tokens],
            )
        if num_prefill_tokens < len(query):
            ops.paged_decode(
                query[num_prefill_tokens:],
                k_pool,
                v_pool,
                step.decode_tables,
                step.decode_lens,
                scale=scale,
                out=result[num_prefill_tokens:],
            )
