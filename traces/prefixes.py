"""Which tokens of a request an earlier request had too, exactly, and what blocks are equal.

All requests go into one tree in order of arrival; an edge is a run of tokens, kept as a reference
to the pieces of the request that brought it. The way of a request down the tree says who was the
first to have each of its tokens. A block at any block size is then identified by that first
owner and its place: no hashes, and no cost that grows with the number of tokens.
"""

from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np

from .arrays import Int64
from .content import Content
from .trace import Trace


@dataclass(frozen=True, eq=False)
class Prefixes:
    """Where the prefix of each request was seen first.

    Request i has the segments `offsets[i]` to `offsets[i + 1]`. Segment k ends before token `ends[k]`
    of the request (from 0, ascending) and begins where the one before it ends: these tokens, and all
    before them, are also the start of request `owners[k]` < i, which was the first to have them.
    Tokens behind the last segment are new.
    """

    offsets: Int64  # [n + 1]
    owners: Int64  # [m]
    ends: Int64  # [m]

    def num_seen_tokens(self) -> Int64:
        """Leading tokens of each request that an earlier request had, shape [n]."""
        last = self.offsets[1:] - 1
        some = np.diff(self.offsets) > 0
        seen = np.zeros(len(last), dtype=np.int64)
        seen[some] = self.ends[last[some]]
        return seen

    def owners_of(self, tokens: Int64) -> Int64:
        """Which request was the first to have token `tokens[i]` of request i and all before it."""
        owners = np.arange(len(tokens))
        for row in np.flatnonzero(self.num_seen_tokens() > tokens).tolist():
            first, last = self.offsets[row : row + 2]
            segment = first + np.searchsorted(self.ends[first:last], tokens[row], side="right")
            owners[row] = self.owners[segment]
        return owners

    def block_ids(self, num_tokens: Int64, block_tokens: int) -> tuple[Int64, Int64]:
        """Offsets [n + 1] and ids of the full blocks of the first `num_tokens[i]` tokens of each request.

        Two blocks have the same id if and only if they and everything before them have the same
        tokens. Ids are unique, not dense.
        """
        num_blocks = np.asarray(num_tokens) // block_tokens
        offsets = np.concatenate(([0], np.cumsum(num_blocks))).astype(np.int64)
        place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], num_blocks)
        owner = np.repeat(np.arange(len(num_blocks)), num_blocks)
        # The last token of a block says whose it is. Whole segments, in blocks of their request:
        first_place = self.ends // block_tokens
        request = np.repeat(np.arange(len(num_blocks)), np.diff(self.offsets))
        starts_anew = np.concatenate(([True], request[1:] != request[:-1]))[: len(request)]
        begins = np.where(starts_anew, 0, np.concatenate(([0], first_place[:-1]))[: len(request)])
        stops = np.minimum(first_place, num_blocks[request])
        lengths = np.maximum(stops - begins, 0)
        filled = np.repeat(offsets[request] + begins, lengths)
        filled += np.arange(len(filled)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        owner[filled] = np.repeat(self.owners, lengths)
        # An owner may have fewer full blocks here than whoever shares them: its place in `ids` is no name.
        return offsets, place * len(num_blocks) + owner


def find_prefixes(trace: Trace) -> Prefixes:
    """Who was the first to have the tokens of each request of a trace.

    A request has P + O - 1 tokens to share: the KV of its last output token is never computed.
    Requests count in the order of the trace, each as if all before it had finished.
    """
    tree = _Tree()
    for chunk in trace.chunks:
        content = chunk.content
        if content is None:
            tree.skip(chunk.num_requests)
            continue
        most = chunk.num_prompt_tokens + chunk.num_output_tokens - 1
        limits = np.minimum(content.num_known_tokens(), most)
        tree.begin_chunk(content)
        for first_piece, limit in zip(content.offsets.tolist(), limits.tolist(), strict=False):
            tree.add(first_piece, limit)
    return Prefixes(
        offsets=np.frombuffer(tree.offsets, dtype=np.int64),
        owners=np.frombuffer(tree.owners, dtype=np.int64),
        ends=np.frombuffer(tree.ends, dtype=np.int64),
    )


class _Tree:
    """A radix tree. Edge e begins at token `skip[e]` of piece `piece[e]` of its owner's chunk."""

    def __init__(self) -> None:
        self.chunks: list[tuple[memoryview[int], memoryview[int], memoryview[int]]] = []
        self.offsets, self.owners, self.ends = array("q", [0]), array("q"), array("q")
        self._edges: dict[tuple[int, int, int], int] = {}  # (node, stream, position): edge
        self._owner, self._chunk, self._piece = array("q"), array("q"), array("q")
        self._skip, self._length, self._end_node = array("q"), array("q"), array("q")
        self._num_nodes = 1

    def begin_chunk(self, content: Content) -> None:
        """What `add` adds from now on is in `content`."""
        columns: list[Any] = [content.streams, content.starts, content.num_tokens]
        streams, starts, num_tokens = columns
        # Elements of these are ints, and come faster than numpy's.
        self.chunks.append((memoryview(streams), memoryview(starts), memoryview(num_tokens)))

    def skip(self, num_requests: int) -> None:
        """Requests of which nothing is known."""
        self.offsets.extend([len(self.ends)] * num_requests)

    def add(self, piece: int, limit: int) -> None:
        """The next request: its pieces from `piece` of the last chunk on, as far as `limit` tokens."""
        row = len(self.offsets) - 1
        streams, starts, num_tokens = self.chunks[-1]
        node = depth = skip = 0
        last_owner = -1
        while depth < limit:
            edge = self._edges.get((node, streams[piece], starts[piece] + skip))
            if edge is None:
                self._grow(
                    node, row, len(self.chunks) - 1, piece, skip, limit - depth, self._node()
                )
                break
            their_streams, their_starts, their_tokens = self.chunks[self._chunk[edge]]
            their_piece, their_skip, left = self._piece[edge], self._skip[edge], self._length[edge]
            while left and depth < limit:
                if (
                    streams[piece] != their_streams[their_piece]
                    or starts[piece] + skip != their_starts[their_piece] + their_skip
                ):
                    break
                mine, theirs = num_tokens[piece] - skip, their_tokens[their_piece] - their_skip
                common = min(mine, theirs, left, limit - depth)
                depth, left = depth + common, left - common
                piece, skip = (piece + 1, 0) if common == mine else (piece, skip + common)
                if common == theirs:
                    their_piece, their_skip = their_piece + 1, 0
                else:
                    their_skip += common
            if self._owner[edge] == last_owner:
                self.ends[-1] = depth
            else:
                last_owner = self._owner[edge]
                self.owners.append(last_owner)
                self.ends.append(depth)
            if left and depth < limit:
                self._split(edge, their_piece, their_skip, left)
            node = self._end_node[edge]
        self.offsets.append(len(self.ends))

    def _node(self) -> int:
        self._num_nodes += 1
        return self._num_nodes - 1

    def _grow(
        self, node: int, owner: int, chunk: int, piece: int, skip: int, length: int, end_node: int
    ) -> None:
        """A new edge from `node` to `end_node`."""
        streams, starts, _ = self.chunks[chunk]
        self._edges[node, streams[piece], starts[piece] + skip] = len(self._owner)
        for column, value in (
            (self._owner, owner),
            (self._chunk, chunk),
            (self._piece, piece),
            (self._skip, skip),
            (self._length, length),
            (self._end_node, end_node),
        ):
            column.append(value)

    def _split(self, edge: int, piece: int, skip: int, left: int) -> None:
        """Put a node into `edge`, before its last `left` tokens, which begin at `skip` of `piece`."""
        middle = self._node()
        owner, chunk = self._owner[edge], self._chunk[edge]
        self._grow(middle, owner, chunk, piece, skip, left, self._end_node[edge])
        self._end_node[edge] = middle
        self._length[edge] -= left
