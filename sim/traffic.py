"""Bytes that paged attention moves: what its programs ask the memory for, tensor by tensor.

A byte counts once per load of a program; what several programs load, the table's entries and the
lengths among it, counts for each of them, though a cache may serve the later ones. K and V are
loaded once by one program, so for them this is what the memory itself must deliver. The names are
those of the kernels' arguments, and the kernels are held to these numbers exactly.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

TABLE_ENTRY_BYTES = 4  # int32
LENGTH_BYTES = 4
SLOT_BYTES = 8  # int64: slot numbers and block ids
PART_ELEMENT_BYTES = 4  # split results are fp32
SINK_BYTES = 4  # fp32


@dataclass(frozen=True)
class AttentionShape:
    """One layer on one rank. `element_bytes` is of K, V, query and output alike.

    `block_size`: token slots per block; None: KV is contiguous, without a table. `window`: tokens
    that a token sees, itself included; 0: all.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    element_bytes: int
    block_size: int | None
    window: int = 0
    has_sinks: bool = False

    @property
    def kv_row_bytes(self) -> int:
        """K of one token, all heads; V is as large."""
        return self.num_kv_heads * self.head_dim * self.element_bytes

    @property
    def query_row_bytes(self) -> int:
        """Query of one token, all heads; its output is as large."""
        return self.num_heads * self.head_dim * self.element_bytes


@dataclass(frozen=True)
class Traffic:
    """Bytes per tensor, read and written."""

    read_bytes: Counter[str]
    written_bytes: Counter[str]

    @property
    def num_bytes(self) -> int:
        """All of them."""
        return self.read_bytes.total() + self.written_bytes.total()

    @property
    def kv_bytes(self) -> int:
        """K and V that were read."""
        return self.read_bytes["k"] + self.read_bytes["v"]


def decode_traffic(
    context_lens: Sequence[int],
    shape: AttentionShape,
    *,
    tile_tokens: int,
    num_splits: int = 1,
    min_split_tokens: int = 1,
) -> Traffic:
    """Traffic of one new token per sequence, its own KV slot included in `context_lens`.

    The tokens seen are cut into at most `num_splits` parts of at least `min_split_tokens`, in whole
    tiles of `tile_tokens`; with more than one, parts are written and read again by their merge.
    """
    read: Counter[str] = Counter()
    written: Counter[str] = Counter()
    num_parts = 0
    for context_len in context_lens:
        first = max(context_len - shape.window, 0) if shape.window else 0
        num_seen = context_len - first
        read["k"] += num_seen * shape.kv_row_bytes
        read["v"] += num_seen * shape.kv_row_bytes
        part_tokens = max(-(-num_seen // num_splits), min_split_tokens)
        part_tokens = -(-part_tokens // tile_tokens) * tile_tokens
        num_parts += -(-num_seen // part_tokens)
        # Tiles begin at `first`, in every part: parts are whole tiles.
        read["tables"] += _table_bytes(first, context_len, tile_tokens, shape)
    num_seqs = len(context_lens)
    num_results = num_seqs * shape.num_heads
    read["lens"] = num_seqs * shape.num_kv_heads * num_splits * LENGTH_BYTES
    read["query"] = num_parts * shape.query_row_bytes
    read["sinks"] = num_results * SINK_BYTES * shape.has_sinks
    written["out"] = num_seqs * shape.query_row_bytes
    if num_splits > 1:
        state_bytes = num_results * num_splits * PART_ELEMENT_BYTES
        part_bytes = num_parts * shape.num_heads * shape.head_dim * PART_ELEMENT_BYTES
        for name in ("maxima", "sums"):
            read[name] = written[name] = state_bytes
        read["partials"] = written["partials"] = part_bytes
    return Traffic(+read, +written)


def prefill_traffic(
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    shape: AttentionShape,
    *,
    tile_tokens: int,
    query_tile_tokens: int,
) -> Traffic:
    """Traffic of causal attention of the last `query_lens` tokens of each context.

    Each tile of `query_tile_tokens` reads the keys that its tokens see, in tiles of `tile_tokens`;
    tokens in front of their context (padding has a context of 0) see none.
    Looking up which sequence a tile belongs to (starts, lengths) is not counted.
    """
    read: Counter[str] = Counter()
    for query_len, context_len in zip(query_lens, context_lens, strict=True):
        num_cached = context_len - query_len
        for first_query in range(0, query_len, query_tile_tokens):
            num_queries = min(query_tile_tokens, query_len - first_query)
            end = num_cached + first_query + num_queries
            first = max(num_cached + first_query - shape.window + 1, 0) if shape.window else 0
            num_seen = max(end - first, 0)
            read["k"] += num_seen * shape.kv_row_bytes
            read["v"] += num_seen * shape.kv_row_bytes
            read["tables"] += _table_bytes(first, end, tile_tokens, shape)
            read["sinks"] += shape.num_heads * SINK_BYTES * shape.has_sinks
    num_tokens = sum(query_lens)
    read["query"] = num_tokens * shape.query_row_bytes
    return Traffic(+read, +Counter(out=num_tokens * shape.query_row_bytes))


def store_traffic(
    num_tokens: int, num_padding: int, shape: AttentionShape, *, programs_per_token: int = 1
) -> Traffic:
    """Traffic of writing the KV of `num_tokens` new tokens, beside `num_padding` rows of padding.

    Each program of a token, which takes some of its heads, looks the slot up.
    """
    row_bytes = num_tokens * shape.kv_row_bytes
    slot_bytes = (num_tokens + num_padding) * programs_per_token * SLOT_BYTES
    return Traffic(
        +Counter(key=row_bytes, value=row_bytes, slots=slot_bytes),
        +Counter(k=row_bytes, v=row_bytes),
    )


def _table_bytes(first: int, end: int, tile_tokens: int, shape: AttentionShape) -> int:
    """Entries for tokens [first, end): each tile loads those of the blocks it touches, per head."""
    if shape.block_size is None:
        return 0
    num_entries = 0
    for tile in range(first, end, tile_tokens):
        last = min(tile + tile_tokens, end) - 1
        num_entries += last // shape.block_size - tile // shape.block_size + 1
    return num_entries * shape.num_kv_heads * TABLE_ENTRY_BYTES
