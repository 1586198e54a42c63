"""What the tokens of requests are, so that it can be said which requests share a prefix.

Content is written as pieces of streams: a piece is `num_tokens` tokens of stream `stream` from
position `start` on. Two tokens are equal if and only if their streams and positions are. A format's
block ids, a chat that grows by a turn, token ids and a generator's system prompts all become that.
"""

from dataclasses import dataclass, replace

import numpy as np

from .arrays import Int32, Int64, UInt64, read_only, take_ragged

# A block id of 64 bits is split: the low bits are a place in a stream, the high bits name the stream.
_PLACE_BITS = 31
_STREAM_BITS = 64 - _PLACE_BITS
MAX_SCOPES = 2 ** (63 - _STREAM_BITS)


@dataclass(frozen=True, eq=False)
class Content:
    """The pieces of consecutive requests, one behind the other.

    Request i is made of the pieces `offsets[i]` to `offsets[i + 1]` (half-open). They follow one
    another from its first prompt token on and may go on into its output. Tokens behind its last
    piece are like no other token of the trace.
    """

    block_tokens: int  # the grain in tokens at which the trace knew its content; 1: token by token
    offsets: Int64  # [n + 1], from 0
    streams: Int64  # [m], m = offsets[-1]; >= 0
    starts: Int64  # [m], >= 0
    num_tokens: Int32  # [m], >= 1

    def __post_init__(self) -> None:
        for name in ("offsets", "streams", "starts"):
            object.__setattr__(self, name, read_only(getattr(self, name), np.int64))
        object.__setattr__(self, "num_tokens", read_only(self.num_tokens, np.int32))
        assert self.block_tokens >= 1, f"block_tokens is {self.block_tokens}"
        assert self.offsets.ndim == 1, f"offsets has shape {self.offsets.shape}"
        assert len(self.offsets) >= 1, "offsets is empty; it starts with 0"
        assert self.offsets[0] == 0, f"offsets starts with {self.offsets[0]}"
        assert (np.diff(self.offsets) >= 0).all(), "offsets decreases"
        for name in ("streams", "starts", "num_tokens"):
            shape = getattr(self, name).shape
            assert shape == (self.offsets[-1],), (
                f"offsets ends with {self.offsets[-1]} but {name} has shape {shape}"
            )
        if len(self.streams):
            assert self.streams.min() >= 0, f"stream {self.streams.min()}"
            assert self.starts.min() >= 0, f"a start of {self.starts.min()}"
            assert self.num_tokens.min() >= 1, f"a piece of {self.num_tokens.min()} tokens"

    @property
    def num_requests(self) -> int:
        return len(self.offsets) - 1

    def num_known_tokens(self) -> Int64:
        """Tokens in the pieces of each request, shape [n]."""
        ends = np.concatenate(([0], np.cumsum(self.num_tokens, dtype=np.int64)))
        known: Int64 = np.diff(ends[self.offsets])
        return known

    def head(self, n: int) -> "Content":
        """The content of the first `n` requests."""
        m = self.offsets[n]
        return replace(
            self,
            offsets=self.offsets[: n + 1],
            streams=self.streams[:m],
            starts=self.starts[:m],
            num_tokens=self.num_tokens[:m],
        )

    def take(self, rows: Int64) -> "Content":
        """The content of `rows`, numbers of requests in here."""
        offsets, pieces = take_ragged(self.offsets, rows)
        return replace(
            self,
            offsets=offsets,
            streams=self.streams[pieces],
            starts=self.starts[pieces],
            num_tokens=self.num_tokens[pieces],
        )


def content_of_block_ids(
    block_tokens: int,
    ids: UInt64,
    offsets: Int64,
    num_prompt_tokens: Int64,
    scopes: Int64 | int = 0,
) -> Content:
    """Content of prompts that a format describes by one id for each `block_tokens` tokens.

    The ids of request i are `ids[offsets[i]:offsets[i + 1]]`; where its prompt ends inside the last
    block, that id stands for what is left (a ceil format). A floor format has no id for the rest of
    a prompt, which then is like no other. Ids are compared within their scope only: `scopes` is one
    number (ids of the whole trace mean the same) or one for each request, each below MAX_SCOPES:
    a file, a session, a model. Consecutive ids make one piece, so dense ids take little memory.
    """
    ids = np.asarray(ids, dtype=np.uint64)
    num_ids = np.diff(offsets)
    num_tokens = np.full(len(ids), block_tokens, dtype=np.int64)
    some = num_ids > 0
    left = np.asarray(num_prompt_tokens)[some] - (num_ids[some] - 1) * block_tokens
    assert len(left) == 0 or left.min() >= 1, "more ids than the prompt has blocks"
    num_tokens[offsets[1:][some] - 1] = np.minimum(left, block_tokens)

    places = (ids & np.uint64(2**_PLACE_BITS - 1)).astype(np.int64)
    streams = (ids >> np.uint64(_PLACE_BITS)).astype(np.int64)
    scopes = np.asarray(scopes, dtype=np.int64)
    assert (scopes >= 0).all(), f"scope {scopes.min()}"
    assert (scopes < MAX_SCOPES).all(), f"scope {scopes.max()}, the limit is {MAX_SCOPES}"
    streams += np.repeat(np.broadcast_to(scopes, num_ids.shape), num_ids) << _STREAM_BITS
    # A piece starts where a request does, and where the id is not the next one of the same stream.
    is_start = np.ones(len(ids), dtype=bool)
    is_start[1:] = (np.diff(places) != 1) | (np.diff(streams) != 0)
    is_start[offsets[:-1][some]] = True
    first_ids = np.flatnonzero(is_start)
    return Content(
        block_tokens=block_tokens,
        offsets=np.concatenate(([0], np.cumsum(is_start)))[offsets],
        streams=streams[first_ids],
        starts=places[first_ids] * block_tokens,
        num_tokens=read_only(
            np.add.reduceat(num_tokens, first_ids) if len(ids) else num_tokens, np.int32
        ),
    )
