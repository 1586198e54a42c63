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
    `derived` says how, where it is not blocks x block size, else it is empty.
    """

    num_blocks: int
    num_reserved_blocks: int
    block_size: int
    block_bytes: int
    num_tokens: int
    derived: str = ""

    @abstractmethod
    def bytes_for(self, num_tokens: int) -> int:
        """Bytes of pool that one request with `num_tokens` committed tokens holds, whole blocks.

        Never falls when `num_tokens` rises.
        """

    @abstractmethod
    def concurrency(self, num_tokens: int) -> Fraction:
        """How many requests of `num_tokens` the engine says the pool holds; may be below 1."""

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
    default_utilization: ClassVar[float]

    @abstractmethod
    def budget(self, deployment: Deployment, stage: int) -> tuple[Term, ...]:
        """What the KV memory of a rank of pipeline stage `stage` is made of, in order.

        The terms' bytes add up to it; the sum may be negative.
        """

    @abstractmethod
    def pool(self, deployment: Deployment, stage: int, kv_bytes: int) -> SizedPool:
        """The pool that `kv_bytes` of memory make; `num_blocks` may be 0."""
