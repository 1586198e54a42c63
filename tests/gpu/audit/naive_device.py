"""A device without kernels, which writes and copies slot by slot as the decision log says."""

from typing import Any

import torch

from kvtwin.gpu.audit import Audit, AuditSetting, LayerGroup
from kvtwin.gpu.audit.poison import poison
from kvtwin.gpu.twin.content import ContentShape, TokenContent, TokenIds
from kvtwin.sim import RunConfig, assemble
from kvtwin.sim.engine_contract import Work
from kvtwin.sim.executor import CostExecutor
from kvtwin.sim.policies.slots import Slots
from kvtwin.traces import Trace

SHAPE = ContentShape(2, 2, 2, 4, torch.float16)


class NaiveDevice:
    """Pools of two layers, tables as lists of slots, and poison wherever nothing is to be kept."""

    groups: tuple[LayerGroup, ...] = ()  # all layers have the same tables

    def __init__(
        self, trace: Trace, assembly: Any, shape: ContentShape = SHAPE, num_pools: int = 0
    ) -> None:
        # A token has one slot here, and as many of the policy's as it takes in the largest group.
        self.token_slots = assembly.pool.groups.block_token_slots
        self.size = assembly.policy.block_slots // self.token_slots
        self.num_slots = assembly.policy.num_slots // self.token_slots
        self.policy, self.log = assembly.policy, assembly.log
        self.grants_hits = isinstance(assembly.policy, Slots)  # a place with what is found in it
        self.shape = shape
        num_blocks = self.num_slots // self.size
        pool_shape = (num_blocks, self.size, shape.num_kv_heads, shape.head_dim)
        self.layers = [
            (torch.zeros(pool_shape, dtype=shape.dtype), torch.zeros(pool_shape, dtype=shape.dtype))
            for _ in range(num_pools or shape.num_layers)
        ]
        self.pools = [pool for layer in self.layers for pool in layer]
        self.by_slot = [pool.flatten(0, 1) for pool in self.pools]
        blocks = (400, 2, self.size, shape.num_kv_heads, shape.head_dim)
        self.host = [torch.zeros(blocks, dtype=shape.dtype) for _ in self.layers]
        self.tables: dict[Any, list[int]] = {}
        self.done: dict[Any, int] = {}  # tokens of a sequence that have been computed
        self.known: dict[Any, Any] = {}  # ids of the tokens of a sequence
        self.ids, self.content = TokenIds(trace), TokenContent(shape, "cpu")
        self.at = 0
        self.poison(range(self.num_slots))

    def poison(self, slots: Any) -> None:
        poison(self.pools, [(slot, 1) for slot in slots])

    def copy(self, sources: list[int], targets: list[int]) -> None:
        for pool in self.by_slot:
            pool[targets] = pool[sources].clone()

    def slots(self, first: int, num: int) -> list[int]:
        return list(range(first * self.size, (first + num) * self.size))

    def follow(self) -> None:
        """Carry out what the log has more than before; then poison what is free."""
        log = self.log
        for at in range(self.at, len(log.steps)):
            key = log.rows[at], log.branches[at]
            slots = self.slots(log.firsts[at], log.nums[at])
            action = {"copy": "copy_on_write"}.get(log.actions[at], log.actions[at])
            getattr(self, action)(key, slots, self.slots(log.sources[at], log.nums[at]))
        self.at = len(log.steps)
        for first, num in self.policy.free_runs():
            self.poison(range(first // self.token_slots, (first + num) // self.token_slots))

    def grant(self, key: Any, slots: list[int], _: list[int]) -> None:
        if not self.grants_hits:
            self.poison(slots)
        self.tables.setdefault(key, []).extend(slots)

    def extend(self, key: Any, slots: list[int], source: list[int]) -> None:
        self.grant(key, slots, source)

    def free(self, key: Any, slots: list[int], _: list[int]) -> None:
        self.tables[key] = [slot for slot in self.tables[key] if slot not in slots]
        if not self.tables[key]:
            self.done.pop(key, None)

    def move(self, key: Any, slots: list[int], _: list[int]) -> None:
        old = self.tables[key]
        self.copy(old, slots[: len(old)])
        self.poison(slots[len(old) :])
        self.tables[key] = slots

    def vacate(self, key: Any, slots: list[int], _: list[int]) -> None:
        pass  # what is free is poisoned at the end

    def share(self, key: Any, slots: list[int], _: list[int]) -> None:
        mine, place = self.tables.setdefault(key, []), len(self.tables.get(key, ()))
        for other, theirs in self.tables.items():
            if other[0] == key[0] and other != key and theirs[place : place + 1] == slots[:1]:
                ids, end = self.ids_of(other), min(place + len(slots), self.done.get(other, 0))
                self.ids_of(key)[place:end] = ids[place:end]
        mine.extend(slots)

    def ids_of(self, key: Any) -> Any:
        if key not in self.known:
            self.known[key] = self.ids.of(*key, 200)
        return self.known[key]

    def copy_on_write(self, key: Any, slots: list[int], sources: list[int]) -> None:
        self.copy(sources, slots)
        self.rename(key, sources, slots)

    def rename(self, key: Any, old: list[int], new: list[int]) -> None:
        table, names = self.tables[key], dict(zip(old, new, strict=True))
        table[:] = [names.get(slot, slot) for slot in table]

    def swap_out(self, key: Any, slots: list[int], sources: list[int]) -> None:
        block, source = slots[0] // self.size, sources[0] // self.size
        for host, (k_pool, v_pool) in zip(self.host, self.layers, strict=True):
            host[block, 0], host[block, 1] = k_pool[source], v_pool[source]
        for other in self.of_request(key):
            self.rename(other, sources, [~slot for slot in slots])

    def swap_in(self, key: Any, slots: list[int], sources: list[int]) -> None:
        block, source = slots[0] // self.size, sources[0] // self.size
        for host, (k_pool, v_pool) in zip(self.host, self.layers, strict=True):
            k_pool[block], v_pool[block] = host[source, 0], host[source, 1]
        for other in self.of_request(key):
            self.rename(other, [~slot for slot in sources], slots)

    def of_request(self, key: Any) -> list[Any]:
        return [other for other in self.tables if other[0] == key[0]]

    def vacate_host(self, key: Any, slots: list[int], _: list[int]) -> None:
        pass

    def compute(self, work: list[Work]) -> list[tuple[int, int, int, int]]:
        """Write K and V of the tokens of a step; returns them as (row, branch, first, number of tokens)."""
        done = []
        for seq, first, num in work:
            key = seq.row, getattr(seq, "branch", 0)
            if self.policy.keeps_kv:
                if self.grants_hits and seq.computed == first:
                    self.poison(self.tables[key][first:])  # behind what was found
                self.write(key, first, num)
            done.append((*key, first, num))
        return done

    def write(self, key: Any, first: int, num: int) -> None:
        ids = torch.from_numpy(self.ids_of(key)[first : first + num].copy())
        slots, self.done[key] = self.tables[key][first : first + num], first + num
        self.store(slots, self.content.of(ids, "key"), self.content.of(ids, "value"))

    def store(self, slots: list[int], keys: torch.Tensor, values: torch.Tensor) -> None:
        for layer, (key, value) in enumerate(zip(keys, values, strict=True)):
            self.by_slot[2 * layer][slots] = key
            self.by_slot[2 * layer + 1][slots] = value


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
        num_slots=device.num_slots,
        block_slots=device.size,
        max_model_len=assembly.pool.max_model_len,
        max_tokens=config.max_tokens,
        watermark=(
            assembly.policy.default_watermark if config.watermark is None else config.watermark
        ),
        branch_outputs=assembly.requests.branch_outputs,
        keeps_kv=assembly.policy.keeps_kv,
        reuses_prefixes=assembly.policy.reuses_prefixes,
        reuses_answers=getattr(assembly.policy, "reuses_answers", False),
        whole_batch=getattr(assembly.policy, "whole_batch", False),
        groups=device.groups,
    )
    audit = Audit(trace, assembly.log, setting, device.shape, device.layers, lambda: device.host)
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
