"""Writing Mooncake traces, as their readers expect them: dense block ids in order of first appearance."""

from typing import BinaryIO

import numpy as np

from ..arrays import Int64
from ..prefixes import Prefixes, find_prefixes
from ..trace import Trace

_NS_PER_MS = 10**6


def write_mooncake(trace: Trace, file: BinaryIO, block_tokens: int) -> None:
    """One JSON object a line. Arrivals are cut to whole milliseconds.

    Prompts share an id where they share a block and all before it; without content no two do.
    """
    prompts = np.concatenate([chunk.num_prompt_tokens for chunk in trace.chunks])
    offsets, ids = _dense_ids(find_prefixes(trace), prompts, block_tokens)
    row = 0
    for chunk in trace.chunks:
        columns = (chunk.arrival_ns // _NS_PER_MS, chunk.num_prompt_tokens, chunk.num_output_tokens)
        lines = []
        for time_ms, prompt, output in zip(*(c.tolist() for c in columns), strict=True):
            of_row = ids[offsets[row] : offsets[row + 1]].tolist()
            lines.append(
                f'{{"timestamp": {time_ms}, "input_length": {prompt}, "output_length": {output},'
                f' "hash_ids": {of_row}}}\n'
            )
            row += 1
        file.write("".join(lines).encode())


def _dense_ids(
    prefixes: Prefixes, num_prompt_tokens: Int64, block_tokens: int
) -> tuple[Int64, Int64]:
    """Offsets [n + 1] and ids of the blocks of prompts, also of partial last ones."""
    full_offsets, full_ids = prefixes.block_ids(num_prompt_tokens, block_tokens)
    rests = num_prompt_tokens % block_tokens
    offsets = full_offsets + np.concatenate(([0], np.cumsum(rests > 0)))
    ids = np.empty(offsets[-1], dtype=np.int64)
    is_partial = np.zeros(len(ids), dtype=bool)
    is_partial[offsets[1:][rests > 0] - 1] = True
    ids[~is_partial] = full_ids
    # A partial block is known by who had its last token first, its place, and how full it is. Place and
    # fill follow from the length of the prompt.
    ends = np.flatnonzero(rests > 0)
    owners = prefixes.owners_of(num_prompt_tokens - 1)[ends]
    keys = np.stack([owners, num_prompt_tokens[ends]])
    beyond_full = full_ids.max(initial=-1) + 1
    ids[is_partial] = beyond_full + np.unique(keys, axis=1, return_inverse=True)[1].reshape(-1)
    _, first_places, codes = np.unique(ids, return_index=True, return_inverse=True)
    ranks = np.empty(len(first_places), dtype=np.int64)
    ranks[np.argsort(first_places)] = np.arange(len(first_places))
    return offsets, ranks[codes.reshape(-1)]
