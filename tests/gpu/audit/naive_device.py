"""A device without kernels, which writes and copies slot by slot as the decision log says."""

from typing import Any

import torch

from kvtwin.gpu.audit import Audit, AuditSetting
from kvtwin.gpu.audit.poison import poison
from kvtwin.gpu.twin.content import ContentShape, TokenContent, TokenIds
from kvtwin.sim import RunConfig, assemble
from kvtwin.sim.engine_contract import Work
from kvtwin.sim.executor import CostExecutor
from kvtwin.traces import Trace

SHAPE = ContentShape(2, 2, 2, 4, torch.float16)


class NaiveDevice:
    """Pools of two layers, tables as lists of slots, and poison wherever nothing is to be kept."""

    def __init__(self, trace: Trace, assembly: Any, shape: ContentShape = SHAPE) -> None:
        self.size = assembly.policy.block_slots
        self.policy, self.log = assembly.policy, assembly.log
        self.shape = shape
        pool_shape = (assembly.policy.num_slots, 1, shape.num_kv_heads, shape.head_dim)
        self.layers = [
            (torch.zeros(pool_shape, dtype=shape.dtype), torch.zeros(pool_shape, dtype=shape.dtype))
            for _ in range(shape.num_layers)
        ]
        self.pools = [pool for layer in self.layers for pool in layer]
        self.tables: dict[Any, list[int]] = {}
        self.ids, self.content = TokenIds(trace), TokenContent(shape, "cpu")
        self.at = 0
        self.poison(range(assembly.policy.num_slots))

    def poison(self, slots: Any) -> None:
        poison(self.pools, [(slot, 1) for slot in slots])

    def copy(self, sources: list[int], targets: list[int]) -> None:
        for pool in self.pools:
            pool[targets] = pool[sources].clone()

    def slots(self, first: int, num: int) -> list[int]:
        return list(range(first * self.size, (first + num) * self.size))

    def follow(self) -> None:
        """Carry out what the log has more than before; then poison what is free."""
        log = self.log
        for at in range(self.at, len(log.steps)):
            key = log.rows[at], log.branches[at]
            slots = self.slots(log.firsts[at], log.nums[at])
            getattr(self, log.actions[at])(key, slots, self.slots(log.sources[at], log.nums[at]))
        self.at = len(log.steps)
        for first, num in self.policy.free_runs():
            self.poison(range(first, first + num))

    def grant(self, key: Any, slots: list[int], _: list[int]) -> None:
        if not self.policy.reuses_prefixes:
            self.poison(slots)
        self.tables.setdefault(key, []).extend(slots)

    def extend(self, key: Any, slots: list[int], source: list[int]) -> None:
        self.grant(key, slots, source)

    def free(self, key: Any, slots: list[int], _: list[int]) -> None:
        self.tables[key] = [slot for slot in self.tables[key] if slot not in slots]

    def move(self, key: Any, slots: list[int], _: list[int]) -> None:
        old = self.tables[key]
        self.copy(old, slots[: len(old)])
        self.poison(slots[len(old) :])
        self.tables[key] = slots

    def vacate(self, key: Any, slots: list[int], _: list[int]) -> None:
        self.poison(slots)

    def compute(self, work: list[Work]) -> list[tuple[int, int, int, int]]:
        """Write K and V of the tokens of a step; returns them as (row, branch, first, number of tokens)."""
        done = []
        for seq, first, num in work:
            key = seq.row, getattr(seq, "branch", 0)
            if self.policy.keeps_kv:
                if self.policy.reuses_prefixes and seq.computed == first:
                    self.poison(self.tables[key][first:])  # behind what was found
                self.write(key, first, num)
            done.append((*key, first, num))
        return done

    def write(self, key: Any, first: int, num: int) -> None:
        ids = torch.from_numpy(self.ids.of(*key, first + num)[first:].copy())
        slots = self.tables[key][first : first + num]
        self.store(slots, self.content.of(ids, "key"), self.content.of(ids, "value"))

    def store(self, slots: list[int], keys: torch.Tensor, values: torch.Tensor) -> None:
        for (k_pool, v_pool), key, value in zip(self.layers, keys, values, strict=True):
            k_pool[slots, 0], v_pool[slots, 0] = key, value


def audited_run(
    trace: Trace,
    config: RunConfig,
    device_type: type[NaiveDevice] = NaiveDevice,
    policy_name: str | None = None,
    every: int = 1,
) -> Audit:
    """Execute on a naive device, looking at every slot in every step, or in each `every`th."""
    assembly = assemble(trace, config, decisions=True)
    engine: Any = assembly.engine
    device = device_type(trace, assembly)
    assert assembly.log is not None
    setting = AuditSetting(
        policy=policy_name or config.policy,
        num_slots=assembly.policy.num_slots,
        block_slots=assembly.policy.block_slots,
        max_model_len=assembly.pool.max_model_len,
        max_tokens=config.max_tokens,
        watermark=config.watermark,
        keeps_kv=assembly.policy.keeps_kv,
        reuses_prefixes=assembly.policy.reuses_prefixes,
        whole_batch=getattr(assembly.policy, "whole_batch", False),
    )
    audit = Audit(trace, assembly.log, setting, SHAPE, device.layers)
    executor, now_ns, step = CostExecutor(assembly.cost), 0, 0
    while True:
        plan = engine.plan(now_ns)
        if plan is None:
            if engine.queue.next_arrival_ns == 1 << 62:
                break
            idle_ns, now_ns = now_ns, engine.queue.next_arrival_ns
            engine.idle(idle_ns, now_ns)
            continue
        device.follow()
        work = device.compute(engine.work(plan))
        audit.follow(step, work)
        if step % every == 0:
            audit.inspect(engine.parts(), engine.refused_row)
        ends_ns = executor.execute(plan)[:1]
        engine.commit(plan, ends_ns)
        now_ns, step = ends_ns[0], step + 1
    device.follow()
    audit.finish()
    return audit
