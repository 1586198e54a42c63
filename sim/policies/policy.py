"""The contract of a policy: whom it rejects, what its pool holds, and which engine schedules it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from ..block_groups import ONE_GROUP, BlockGroups
from ..link import NO_COST, Link

# Fields of `RunConfig` that some policies read and others do not. Of samples and beams `serves_branches` says it.
POLICY_FIELDS = (
    "admission",
    "watermark",
    "growth_tokens",
    "fit",
    "compaction",
    "preemption_mode",
    "swap_space",
    "swap_copy_ns",
    "scheduling_policy",
    "enable_chunked_prefill",
    "long_prefill_token_threshold",
    "async_scheduling",
    "free_order",
)


class DecisionLog(Protocol):
    """Where a policy reports what it did; see `decisions.py`."""

    def add(
        self, action: str, row: int, first: int, num: int, branch: int = 0, source: int = -1
    ) -> None: ...


@dataclass(frozen=True)
class PolicySettings:
    """The pool, and the options of every family of policies."""

    num_slots: int
    max_model_len: int
    max_num_seqs: int = 256
    block_size: int = 16  # tokens
    admission: str = "full"  # `full`: a whole sequence must fit when it is admitted; `step`: what this step computes
    watermark: float = 0.0  # share of the pool's blocks kept free at admissions
    growth_tokens: int = 16
    fit: str = "first"  # or `best`
    compaction: bool = False
    activation_tokens: int = 0  # tokens whose activations fit into the bytes of the pool
    num_host_slots: int = 0  # of the pool in the host's memory
    link: Link = NO_COST  # between the two
    preemption_mode: str = (
        "auto"  # `recompute` or `swap`; `auto`: swap where several sequences share
    )
    seed: int = 0
    scheduling_policy: str = "fcfs"  # or `priority`
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0  # most tokens of a prompt in a step; 0: no such limit
    async_scheduling: bool = False
    free_order: str = (
        "front"  # of blocks that nothing can be found in: reused first, or `back`: in turn
    )
    groups: BlockGroups = ONE_GROUP
    max_in_flight_tokens: int = 8192  # scheduled and not yet processed, of all requests


class Policy(ABC):
    """A memory manager with one pool. It sees token counts and ids, never tensors, text or clocks.

    Runs of slots are half-open and written as (first slot, number of slots). What holds slots is a sequence of the
    policy's engine: anything with a `row`, the number of its request.
    """

    engine: ClassVar[str] = "kvtwin.sim.engine:Engine"
    """What schedules it, `package.module:Class`: see `EngineContract`."""
    scheduling: ClassVar[str] = "iteration-level, first come first served"
    """The rule of that, in words."""
    keeps_kv: ClassVar[bool] = True
    """False: every step computes the whole prefix of every sequence again, and nothing of the pool is used."""
    serves_branches: ClassVar[bool] = False
    """A request may have several sequences, samples or beams. False: it gets one, whatever is asked for."""
    default_watermark: ClassVar[float] = 0.0
    """Share of the pool's blocks kept free at admissions unless the user says otherwise."""
    options: ClassVar[frozenset[str] | None] = None
    """Fields of `RunConfig` that it reads, of those in `POLICY_FIELDS`; None: not said."""
    groups_layers: ClassVar[bool] = False
    """Its blocks are those of a group of layers, where vLLM forms groups. False: of all layers."""
    reuses_prefixes: ClassVar[bool] = False
    """What a sequence leaves behind may serve others, as far as the trace says what prompts are made of."""
    reuses_answers: ClassVar[bool] = False
    """Answers, too, as far as the trace says what they are made of."""
    largest_grant_is: ClassVar[str] = "an empty pool"
    """What `largest_grant` is the size of, in words that name the flag that changes it, for whoever needs more."""

    block_slots: int
    """Slots of what the decision log numbers, and of a block of the block tables: 1 where runs of slots are granted."""
    log: DecisionLog | None
    """Where every decision with its ids is reported, if anybody wants to know."""

    def __init__(self, settings: PolicySettings) -> None:
        self.num_slots = settings.num_slots
        self.max_num_seqs = settings.max_num_seqs
        self.block_slots = 1
        self.log = None

    @abstractmethod
    def largest_need(self, num_prompt_tokens: int, num_output_tokens: int, max_tokens: int) -> int:
        """Slots that the request needs at its largest moment; it is rejected at arrival if above `largest_grant`."""

    def group_need(self, num_prompt_tokens: int, num_output_tokens: Seq[int]) -> int:
        """The same of a request with as many sequences as outputs, for a policy that `serves_branches`."""
        raise AssertionError(f"{type(self).__name__} serves one sequence of each request")

    @property
    def largest_grant(self) -> int:
        """Slots that a single sequence can hold in an otherwise empty pool."""
        return self.num_slots

    @abstractmethod
    def num_free_slots(self) -> int:
        """Slots on the free list, counted there, cached ones not among them."""

    def num_cached_slots(self) -> int:
        """Slots that nobody holds and whose content can be used again."""
        return 0

    @abstractmethod
    def free_runs(self) -> list[tuple[int, int]]:
        """Maximal runs of adjacent free slots, by address."""

    def cached_runs(self) -> list[tuple[int, int]]:
        """Maximal runs of adjacent cached slots, by address."""
        return []

    @abstractmethod
    def runs(self, seq: Any) -> list[tuple[int, int]]:
        """Runs of slots that the sequence holds, by position in the sequence, sources of moves included."""

    def largest_free_run(self) -> int:
        """Slots in the longest run of adjacent free slots."""
        return max((num for _, num in self.free_runs()), default=0)

    @abstractmethod
    def check(self, holders: Iterable[Any]) -> None:
        """Recount everything from runs and free lists. Raises AssertionError naming the invariant and both numbers."""


def merge_runs(pieces: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join adjacent (first slot, number of slots) pieces, which come sorted by address and do not overlap."""
    merged: list[tuple[int, int]] = []
    for first, num in pieces:
        if merged and sum(merged[-1]) == first:
            merged[-1] = (merged[-1][0], merged[-1][1] + num)
        else:
            merged.append((first, num))
    return merged
