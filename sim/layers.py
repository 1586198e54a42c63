"""What the layers of a model keep of a request."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AttentionKv:
    """K and V of one attention layer: `num_kv_heads` x (`key_dim` + `value_dim`) elements a token.

    `window`: tokens that the layer looks back on, its own included; 0: all. `chunked`: only on those
    since the last multiple of `window`, which is the most that they may be. `replicated`: every
    rank holds all of it, as the latent vector of multi-head latent attention, which is one "head"
    of `key_dim` elements without a V (DeepSeek-V2 report, section 2.1); else the KV heads are
    divided over the ranks of a tensor-parallel group, at least one a rank.
    """

    num_kv_heads: int
    key_dim: int
    value_dim: int
    window: int = 0
    replicated: bool = False
    chunked: bool = False

    def __post_init__(self) -> None:
        assert self.num_kv_heads >= 1, self
        assert self.key_dim >= 1, self
        assert self.value_dim >= 0, self
        assert self.window >= self.chunked, self

    def elements_per_token(self, tensor_parallel_size: int) -> int:
        """Elements of one token on one rank."""
        split = 1 if self.replicated else tensor_parallel_size
        return max(1, self.num_kv_heads // split) * (self.key_dim + self.value_dim)


@dataclass(frozen=True)
class RecurrentState:
    """State of one recurrent layer: a fixed `num_bytes` a request, however long it is.

    Its heads and channels are divided over the ranks of a tensor-parallel group.
    """

    num_bytes: int

    def __post_init__(self) -> None:
        assert self.num_bytes >= 1, self


# One entry a layer, in order; None keeps nothing (it has no attention, or reads another layer's).
LayerMemory = AttentionKv | RecurrentState | None
