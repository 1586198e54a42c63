"""The contract of an engine's way to account for KV memory."""

from abc import ABC, abstractmethod
from fractions import Fraction
from typing import ClassVar

from .deployment import Deployment
from .terms import Term


class SizedPool(ABC):
    """The KV pool of one rank, as its engine counts it.

    `num_blocks` of `block_size` tokens and `block_bytes` each, `num_reserved_blocks` of them kept
    by the engine itself. `num_tokens`: the figure that the engine prints as its KV-cache size;
    `derived` says how, where it is not blocks x block size, else it is empty. Where an engine keeps
    pools side by side (windows, recurrent states), the blocks are those of the pool of layers that
    store every token, and `pool_bytes` counts all.
    """

    num_blocks: int
    num_reserved_blocks: int
    block_size: int
    block_bytes: int

    @property
    @abstractmethod
    def num_tokens(self) -> int:
        """The KV-cache size that the engine prints."""

    @property
    def derived(self) -> str:
        """How `num_tokens` is derived; empty where it is blocks x block size."""
        return ""

    @property
    def pool_bytes(self) -> int:
        """Bytes of the whole pool, reserved blocks included."""
        return self.num_blocks * self.block_bytes

    @property
    def usable_bytes(self) -> int:
        """Bytes that requests can hold."""
        return self.pool_bytes - self.num_reserved_blocks * self.block_bytes

    def num_tokens_printed_by(self, version: tuple[int, int]) -> int:
        """The KV-cache size as (major, minor) `version` of the engine printed it."""
        return self.num_tokens

    @abstractmethod
    def bytes_for(self, num_tokens: int) -> int:
        """Bytes of pool that one decoding request with `num_tokens` committed tokens holds, whole blocks.

        Never falls when `num_tokens` rises.
        """

    def bytes_to_admit(self, num_tokens: int) -> int:
        """Bytes that must be free for one request of `num_tokens`; at least `bytes_for`.

        More than that where an engine plans for tokens in flight that a window will drop.
        """
        return self.bytes_for(num_tokens)

    @abstractmethod
    def concurrency(self, num_tokens: int) -> Fraction:
        """How many requests of `num_tokens` the engine says the pool holds; may be below 1."""

    def share_held(self, num_tokens: int) -> Fraction:
        """Share of what requests can hold that a decoding one of `num_tokens` takes.

        Where there are several pools, of the one that is used up first.
        """
        return Fraction(self.bytes_for(num_tokens), self.usable_bytes)

    @abstractmethod
    def fits(self, num_tokens: int) -> bool:
        """Whether one request of `num_tokens` can be served by an empty pool."""

    @abstractmethod
    def sentences(self, deployment: Deployment) -> tuple[str, ...]:
        """What the engine prints about this pool at its start, word for word."""


class Accounting(ABC):
    """How one engine divides a GPU's memory, and counts its KV pool.

    `utilization_meaning` says what the engine's memory fraction is a fraction of.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    utilization_flag: ClassVar[str]
    utilization_meaning: ClassVar[str]
    # Whether the engine starts although a request of max_model_len does not fit, and cuts or refuses
    # longer requests.
    starts_with_less: ClassVar[bool] = False

    @abstractmethod
    def default_utilization(self, deployment: Deployment) -> float:
        """The engine's own memory fraction for this deployment."""

    @abstractmethod
    def default_max_num_seqs(self, deployment: Deployment) -> int:
        """Requests in a step, where the deployment does not say."""

    @abstractmethod
    def default_max_num_batched_tokens(self, deployment: Deployment) -> int:
        """Tokens in a step, where the deployment does not say."""

    @abstractmethod
    def block_bytes(self, deployment: Deployment, stage: int) -> int:
        """Bytes of one block on a rank of pipeline stage `stage`; 0 if its layers keep nothing."""

    @abstractmethod
    def memory_terms(self, deployment: Deployment, stage: int) -> tuple[Term, ...]:
        """What a rank's KV memory is made of where neither blocks nor bytes are given."""

    @abstractmethod
    def pool(self, deployment: Deployment, stage: int, kv_bytes: int) -> SizedPool:
        """The pool that `kv_bytes` of memory make, where `block_bytes` is above 0.

        `num_blocks` may be 0, also where `kv_bytes` is negative.
        """

    def budget(self, deployment: Deployment, stage: int) -> tuple[Term, ...]:
        """What the KV memory of a rank of pipeline stage `stage` is made of, in order.

        The terms' bytes add up to it; the sum may be negative.
        """
        num_blocks = deployment.num_gpu_blocks_override
        if num_blocks is not None:
            given = num_blocks * self.block_bytes(deployment, stage)
            return (Term("num_gpu_blocks_override", given, "given", "--num-gpu-blocks-override"),)
        num_bytes = deployment.kv_cache_memory_bytes
        if num_bytes is not None:
            return (Term("kv_cache_memory_bytes", num_bytes, *deployment.kv_cache_memory_source),)
        return self.memory_terms(deployment, stage)

    def utilization(self, deployment: Deployment) -> float:
        """The memory fraction that counts."""
        given = deployment.memory_utilization
        return self.default_utilization(deployment) if given is None else given

    def max_num_seqs(self, deployment: Deployment) -> int:
        """Requests in a step."""
        given = deployment.max_num_seqs
        return self.default_max_num_seqs(deployment) if given is None else given

    def max_num_batched_tokens(self, deployment: Deployment) -> int:
        """Tokens in a step."""
        given = deployment.max_num_batched_tokens
        return self.default_max_num_batched_tokens(deployment) if given is None else given
