"""What every token of a trace is, and its K, V and query: cheap, and the same wherever it is asked for.

A token has an id of 64 bits, which says what it is and everything in front of it. So two sequences
have the same id at a position exactly if they agree up to there, as with the KV of a real model,
and a prefix that is shared by mistake shows. K, V and queries are drawn from (id, layer, head,
channel): 8 bits an element, which fp16, bf16 and fp32 hold without rounding, so that what lies in
a pool can be compared bit by bit.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kvtwin.traces import Content, Trace

Ids = npt.NDArray[np.int64]

_MASK = (1 << 64) - 1
# Steele, Lea, Flood: "Fast splittable pseudorandom number generators" (2014), as in SplitMix64.
_GAMMA = 0x9E3779B97F4A7C15
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
# Streams that no trace has: of tokens that are like no other, by row and branch.
_UNIQUE = 1 << 63
KINDS = ("key", "value", "query")


class TokenIds:
    """Ids of the tokens of every sequence of `trace`, prompt and output alike.

    What the trace says of a request's content goes first, for branch 0 into the output; tokens
    behind it are unique to (row, branch), or to the row where they are part of the prompt.
    """

    def __init__(self, trace: Trace) -> None:
        self._chunks = trace.chunks
        first_rows = np.cumsum([0, *(chunk.num_requests for chunk in trace.chunks)])
        self._first_rows = first_rows

    def of(self, row: int, branch: int, num_tokens: int) -> Ids:
        """Ids of the first `num_tokens` tokens: int64 [num_tokens]."""
        at = int(np.searchsorted(self._first_rows, row, side="right")) - 1
        chunk, number = self._chunks[at], row - int(self._first_rows[at])
        num_prompt_tokens = int(chunk.num_prompt_tokens[number])
        ids = np.empty(num_tokens, dtype=np.int64)
        prompt_end = min(num_prompt_tokens, num_tokens)
        known_end = num_tokens if branch == 0 else prompt_end
        state = filled = 0
        for stream, start, length in _runs(chunk.content, number):
            end = min(filled + length, known_end)
            state = _fill(ids[filled:end], state, stream, start)
            filled = end
        if filled < prompt_end:
            state = _fill(ids[filled:prompt_end], state, _UNIQUE + row, 0)
            filled = prompt_end
        _fill(ids[filled:], state, _UNIQUE + row, 1 + branch)
        return ids


def _runs(content: Content | None, number: int) -> Iterator[tuple[int, int, int]]:
    """Pieces of a request; those that go on where the one before ends, joined.

    The same tokens may be cut in many ways.
    """
    if content is None:
        return
    places = slice(*content.offsets[number : number + 2].tolist())
    columns = (content.streams, content.starts, content.num_tokens)
    pieces = zip(*(column[places].tolist() for column in columns), strict=True)
    stream, start, length = -1, 0, 0
    for next_stream, next_start, next_length in pieces:
        if next_stream == stream and next_start == start + length:
            length += next_length
            continue
        if length:
            yield stream, start, length
        stream, start, length = next_stream, next_start, next_length
    if length:
        yield stream, start, length


def _fill(ids: Ids, state: int, stream: int, start: int) -> int:
    """Ids of a run behind `state`, which stands for all before it; returns the state behind the run."""
    if not len(ids):
        return state
    key = _mixed(_mixed(state + stream) + start * _GAMMA)
    raw = np.arange(1, len(ids) + 1, dtype=np.uint64) * np.uint64(_GAMMA) + np.uint64(key)
    raw ^= raw >> np.uint64(30)
    raw *= np.uint64(_MIX[0])
    raw ^= raw >> np.uint64(27)
    raw *= np.uint64(_MIX[1])
    raw ^= raw >> np.uint64(31)
    ids[:] = raw.view(np.int64)
    return int(raw[-1])


def _mixed(number: int) -> int:
    """SplitMix64's finaliser: 64 bits that depend on all 64 bits of `number`."""
    number &= _MASK
    number = (number ^ number >> 30) * _MIX[0] & _MASK
    number = (number ^ number >> 27) * _MIX[1] & _MASK
    return number ^ number >> 31


@dataclass(frozen=True)
class ContentShape:
    """What K, V and queries of a model look like, in the layers that are executed.

    `windows`: tokens that a position attends to in each layer, itself included, 0: all; empty if all layers do.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    windows: tuple[int, ...] = ()


class TokenContent:
    """K, V and queries of tokens, computed on `device`."""

    def __init__(self, shape: ContentShape, device: str) -> None:
        self._dtype = shape.dtype
        heads = {"key": shape.num_kv_heads, "value": shape.num_kv_heads, "query": shape.num_heads}
        layers = range(shape.num_layers)
        self._keys = {
            kind: _words([[kind, layer, head] for layer in layers for head in range(heads[kind])])
            .view(shape.num_layers, 1, heads[kind])
            .to(device)
            for kind in KINDS
        }
        self._odd = (_words([["channel", c, 0] for c in range(shape.head_dim)]) | 1).to(device)

    def of(self, ids: torch.Tensor, kind: str, layers: slice = slice(None)) -> torch.Tensor:
        """`key`, `value` or `query` of tokens: [num_layers, num_tokens, heads, head_dim].

        `ids`: int64 [num_tokens], on the device. Values are odd multiples of 1/128 between -2 and 2,
        evenly spread: mean 0, standard deviation 1.15, and never 0.
        """
        # One word of 64 bits for each token, layer and head, different for different tokens; its
        # products with odd numbers spread it over the channels (Dietzfelbinger et al. 1997).
        words = ids[None, :, None] ^ self._keys[kind][layers]
        for shift, factor in zip((30, 27), _MIX, strict=True):
            words = (words ^ (words >> shift & (1 << 64 - shift) - 1)) * _signed(factor)
        words ^= words >> 31 & (1 << 33) - 1
        products = words[..., None] * self._odd
        products >>= 56  # the highest 8 bits, from -128 to 127
        return products.to(torch.float32).mul_(1 / 64).add_(1 / 128).to(self._dtype)


def _words(names: list[list[str | int]]) -> torch.Tensor:
    """A word of 64 bits for each (name, number, number): int64 [num_names]."""
    words = []
    for name, first, second in names:
        state = _mixed(int.from_bytes(str(name).encode(), "big"))
        words.append(_signed(_mixed(_mixed(state + int(first)) + int(second))))
    return torch.tensor(words)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
