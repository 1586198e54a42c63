"""Speed of the torch operations on a CPU: tokens per second of a small model's paged attention.

    OPENBLAS_NUM_THREADS=1 .venv/bin/python benchmarks/torch_executor.py

4 layers, 8 heads, head dim 64, fp32, one thread, blocks of 16: projections of random weights, the
store of new KV and paged decode, at a mean context of 120 tokens in a batch of 64. No feed-forward
and no vocabulary: this is about the KV. Seconds are the process's own, so that a busy machine counts
for less.
"""

import time

import numpy as np
import torch

from kvtwin.gpu import torch_ops

NUM_LAYERS, NUM_HEADS, HEAD_DIM, BLOCK_SIZE = 4, 8, 64, 16
NUM_SEQS, FIRST_MEAN_CONTEXT, NUM_STEPS = 64, 102, 40
HIDDEN = NUM_HEADS * HEAD_DIM
NUM_BLOCKS = 4096
MAX_BLOCKS = 64


def tokens_per_s() -> float:
    """Decode NUM_STEPS steps; contexts are log-normal around the mean and grow by a token a step."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    lens = np.random.default_rng(0).lognormal(np.log(FIRST_MEAN_CONTEXT) - 0.32, 0.8, NUM_SEQS)
    context_lens = torch.tensor(lens).clamp(1, MAX_BLOCKS * BLOCK_SIZE - NUM_STEPS - 1).int()
    order = torch.randperm(NUM_BLOCKS, generator=generator)[: NUM_SEQS * MAX_BLOCKS]
    tables = order.view(NUM_SEQS, MAX_BLOCKS).int()
    shape = (NUM_BLOCKS, BLOCK_SIZE, NUM_HEADS, HEAD_DIM)
    pools = [(torch.randn(shape), torch.randn(shape)) for _ in range(NUM_LAYERS)]
    weights = [torch.randn(HIDDEN, 4 * HIDDEN) / HIDDEN**0.5 for _ in range(NUM_LAYERS)]
    hidden = torch.randn(NUM_SEQS, HIDDEN, generator=generator)
    rows = torch.arange(NUM_SEQS)
    mean_context = 0.0
    started = time.process_time()
    for _ in range(NUM_STEPS):
        positions = context_lens.long()
        slots = tables[rows, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE
        context_lens = context_lens + 1
        mean_context += float(context_lens.float().mean()) / NUM_STEPS
        for (k_pool, v_pool), weight in zip(pools, weights, strict=True):
            query, key, value = (
                (hidden @ weight[:, : 3 * HIDDEN]).view(NUM_SEQS, 3, NUM_HEADS, HEAD_DIM).unbind(1)
            )
            torch_ops.store_kv(key, value, k_pool, v_pool, slots)
            out = torch_ops.paged_decode(
                query, k_pool, v_pool, tables, context_lens, scale=HEAD_DIM**-0.5
            )
            hidden = torch.tanh(hidden + out.reshape(NUM_SEQS, HIDDEN) @ weight[:, 3 * HIDDEN :])
    elapsed_s = time.process_time() - started
    print(f"mean context {mean_context:.0f} tokens, {elapsed_s:.2f} s of CPU for {NUM_STEPS} steps")
    return NUM_SEQS * NUM_STEPS / elapsed_s


if __name__ == "__main__":
    print(f"{tokens_per_s():,.0f} tokens per second of CPU")
