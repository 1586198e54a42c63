"""Executes plans on a device: what the manager decided, then the step itself, timed."""

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch

from kvtwin.sim import Assembly
from kvtwin.sim.plan import Plan

from ..check import Backend
from .batch import Batch, Int64, make_batch
from .clock import timed_ns
from .content import ContentShape, Ids, TokenContent, TokenIds
from .follower import DecisionFollower
from .layers import executed_layers, pool_shape, step_layers
from .pool import DevicePool
from .scratch import Scratch
from .step import put_on_device, run_step
from .tables import Key, in_words


class Clock(Protocol):
    """Says when a step ended, and when somebody arrives."""

    def end_ns(self, step: int, start_ns: int, measured_ns: int) -> int:
        """When step number `step`, begun at `start_ns`, ended: later than that.

        A step begins when what it needs has arrived, `ready_ns` of its plan.
        """
        ...

    def wait_until(self, arrival_ns: int) -> int:
        """Nothing runs until `arrival_ns`, of a request or of blocks. Returns the time then, not before that."""
        ...


@dataclass(frozen=True)
class ExecutedStep:
    """What a step has done: `batch` has the sequences in the order of `keys`.

    `out`: attention of the new tokens, [num_layers, num_tokens, num_heads, head_dim].
    """

    number: int
    plan: Plan
    keys: list[Key]
    batch: Batch
    out: torch.Tensor


class Observer(Protocol):
    """Looks at steps between their execution and their commit."""

    def after_step(self, step: ExecutedStep) -> None:
        """A step has been executed."""
        ...


@dataclass(frozen=True)
class StepTime:
    """How long a step took from its begin on. `totals`: of its plan, in the order of `kvtwin.sim.cost.TOTALS`."""

    start_ns: int
    totals: tuple[int, ...]
    measured_ns: int


@dataclass(frozen=True)
class UnwrittenHit:
    """Positions that a sequence was said to find in the pool when step number `step` began, and nobody had written.

    `group`: of layers, in whose table.
    """

    step: int
    key: Key
    group: int
    positions: Int64

    def __str__(self) -> str:
        group = f" group {self.group}" if self.group else ""
        return (
            f"step {self.step}, {in_words(*self.key)}{group}: {len(self.positions)} of the tokens found in the pool, "
            f"the first at position {self.positions[0]}, were never written; computed now"
        )


class DeviceExecutor:
    """Carries out the plans of an assembled engine on real tensors, one step at a time.

    `memory.pool` holds the KV; under a policy that keeps none it is scratch. `work_log` has an int64
    [num_seqs, 4] for each step: row, branch, first position, number of tokens, as computed.
    """

    def __init__(
        self,
        assembly: Assembly,
        shape: ContentShape,
        backend: Backend,
        clock: Clock,
    ) -> None:
        policy, pool = assembly.policy, assembly.pool
        assert assembly.log is not None, "a device follows the log of decisions"
        self._engine, self._requests = assembly.engine, assembly.requests
        self._shape, self._backend = shape, backend
        self._clock = clock
        self._content = TokenContent(shape, backend.device)
        self._token_ids = TokenIds(assembly.trace)
        self._ids: defaultdict[int, dict[Key, Ids]] = defaultdict(dict)  # by row
        self.memory: DecisionFollower | Scratch
        groups = pool.groups
        self._layers = executed_layers(shape, groups)
        if policy.keeps_kv:
            kv = DevicePool(
                pool_shape(shape, groups),
                pool.num_slots // groups.block_token_slots,
                policy.block_slots // groups.block_token_slots,
                backend.device,
            )
            self.memory = DecisionFollower(assembly.log, policy, groups, kv, backend, self._inherit)
        else:
            self.memory = Scratch(shape, pool.block_size, backend.device)
        self.heirs: set[Key] = set()  # sequences that went on from another one of their request
        self.observers: list[Observer] = []
        self.times: list[StepTime] = []
        self.unwritten_hits: list[UnwrittenHit] = []
        self.work_log: list[Int64] = []

    def execute(self, plan: Plan) -> list[int]:
        """Execute the first step of `plan`; returns when it ended."""
        # Kernels take sequences with several tokens and those with one apart.
        work = sorted(self._engine.work(plan), key=lambda item: item.num_tokens == 1)
        keys = [(item.seq.row, getattr(item.seq, "branch", 0)) for item in work]
        firsts = np.array([item.first for item in work], dtype=np.int64)
        nums = np.array([item.num_tokens for item in work], dtype=np.int64)
        memory, number = self.memory, len(self.times)
        start_ns = plan.start_ns
        if plan.ready_ns > start_ns:  # on their way for as long as it is simulated
            start_ns = plan.ready_ns
            self._clock.wait_until(start_ns)
        measured_ns = memory.follow(
            self._engine.holders(), dict(zip(keys, firsts.tolist(), strict=True))
        )
        self._forget()
        batch = self._batch(keys, firsts, nums)
        step = put_on_device(batch, self._content, self._backend.device)
        # Whatever is not computed shows.
        out = torch.full_like(step.query, torch.nan)
        measured_ns += self._write_missing(keys, batch, firsts)
        layers, ops = step_layers(self._layers, memory.pool.layers), self._backend.ops
        measured_ns += timed_ns(lambda: run_step(layers, step, ops, out), self._backend.device)
        memory.stored(keys, batch)
        self.times.append(StepTime(start_ns, totals_of(plan), measured_ns))
        self.work_log.append(np.column_stack([np.array(keys).reshape(-1, 2), firsts, nums]))
        for observer in self.observers:
            observer.after_step(ExecutedStep(number, plan, keys, batch, out))
        return [self._clock.end_ns(number, start_ns, measured_ns)]

    def finish(self) -> None:
        """The last step has been committed: whatever it freed is poisoned."""
        self.memory.follow(self._engine.holders(), {})

    def _write_missing(self, of: list[Key], batch: Batch, firsts: Int64) -> int:
        """Nothing is read that nobody has written: such tokens are computed after all, and counted.

        Returns the nanoseconds that it took.
        """
        duration_ns, device = 0, self._backend.device
        for key, group, positions in self.memory.unwritten(of, batch, firsts):
            self.unwritten_hits.append(UnwrittenHit(len(self.times), key, group, positions))
            ids = torch.from_numpy(self.ids_of(key, int(positions[-1]) + 1)[positions]).to(device)
            slots = torch.from_numpy(self.memory.slots_of(key, group, positions)).to(device)
            keys, values = self._content.of(ids, "key"), self._content.of(ids, "value")
            duration_ns += timed_ns(partial(self._store, keys, values, group, slots), device)
        return duration_ns

    def _store(
        self, keys: torch.Tensor, values: torch.Tensor, group: int, slots: torch.Tensor
    ) -> None:
        """K and V of tokens, [num_layers, num_tokens, num_kv_heads, head_dim], into their slots of a group."""
        layers = step_layers(self._layers, self.memory.pool.layers)
        for key, value, layer in zip(keys, values, layers, strict=True):
            if layer.group == group:
                self._backend.ops.store_kv(key, value, layer.k_pool, layer.v_pool, slots)

    def _batch(self, keys: list[Key], firsts: Int64, nums: Int64) -> Batch:
        ends = (firsts + nums).tolist()
        spans = zip(keys, firsts.tolist(), ends, strict=True)
        ids = [self.ids_of(key, end)[first:end] for key, first, end in spans]
        return make_batch(
            np.concatenate([np.empty(0, dtype=np.int64), *ids]),
            self.memory.tables_of(keys, firsts + nums),
            firsts,
            nums,
            self.memory.pool.block_slots,
            int((nums > 1).sum()),
        )

    def ids_of(self, key: Key, end: int) -> Ids:
        """Ids of the tokens of a sequence, at least up to `end`."""
        known = self._ids[key[0]].get(key)
        if known is None or len(known) < end:
            row, branch = key
            planned = self._requests.num_prompt_tokens[row] + self._requests.num_output_tokens[row]
            ids = self._token_ids.of(row, branch, max(end, planned))
            if known is not None:
                ids[: len(known)] = known
            known = self._ids[row][key] = ids
        return known

    def _inherit(self, key: Key, ancestor: Key, begin: int, end: int) -> None:
        """A sequence goes on from what another one of its request has computed."""
        if begin < end:
            self.heirs.add(key)
            self.ids_of(key, end)[begin:end] = self.ids_of(ancestor, end)[begin:end]

    def _forget(self) -> None:
        """Ids of requests that have ended."""
        for row, _ in self.memory.released:
            if self._requests.finished_ns[row] >= 0:
                self._ids.pop(row, None)
        self.memory.released.clear()


def totals_of(plan: Plan) -> tuple[int, ...]:
    """Totals of the first step of a plan, in the order of `kvtwin.sim.cost.TOTALS`."""
    return (
        plan.num_prefill_tokens,
        plan.prefill_pairs,
        plan.prefill_context_slots,
        plan.num_decode_tokens,
        plan.decode_context_slots,
        plan.moved_slots,
    )
