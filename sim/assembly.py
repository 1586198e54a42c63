"""One policy's engine, put together from a trace and a configuration, ready to be driven by any clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kvtwin.traces import Trace

from .block_groups import in_flight_tokens
from .catalog import find_gpu
from .closed_loop import check_arrivals, closed_loop_waits
from .config import RunConfig
from .cost import CostModel, load_cost
from .decisions import Decisions
from .engine_contract import EngineContract
from .link import Link
from .plan import Limits
from .policies.policy import Policy, PolicySettings
from .pool import PoolSize, size_pool
from .recorder import MAX_ROWS, Recorder
from .registry import find_engine, find_policy
from .requests import RequestTable
from .samples import Sampling
from .sizing.estimates import activation_bytes_per_token
from .summary import summarize

# Timeline rows of a saturated run or a closed loop start this short, and double as the run goes on.
_SHORTEST_ROW_NS = 20_000_000


def policy_settings(config: RunConfig, pool: PoolSize) -> PolicySettings:
    """The options of `config` that policies read, with its pool."""
    model = config.model_spec
    per_token = activation_bytes_per_token(model, config.tensor_parallel_size)
    watermark = config.watermark
    if watermark is None:
        watermark = find_policy(config.policy).default_watermark
    block_bytes = config.block_size * pool.kv_bytes_per_token
    num_host_blocks = int(config.swap_space * 2**30) // block_bytes
    return PolicySettings(
        num_slots=pool.num_slots,
        max_model_len=pool.max_model_len,
        max_num_seqs=config.max_num_seqs,
        block_size=config.block_size,
        admission=config.admission,
        watermark=watermark,
        growth_tokens=config.growth_tokens,
        fit=config.fit,
        compaction=config.compaction,
        activation_tokens=pool.pool_bytes // per_token,
        # No more than the device has, as in the paper (section 4.5).
        num_host_slots=min(num_host_blocks, pool.num_blocks) * config.block_size,
        link=Link(
            bytes_per_s=find_gpu(config.gpu).pcie_bytes_per_s,
            copy_ns=config.swap_copy_ns,
            copies_per_block=model.num_layers * (1 if model.mla_latent_dim else 2),
            block_bytes=block_bytes,
        ),
        preemption_mode=config.preemption_mode,
        seed=config.seed,
        scheduling_policy=config.scheduling_policy,
        enable_chunked_prefill=config.enable_chunked_prefill,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        async_scheduling=config.async_scheduling,
        free_order=config.free_order,
        groups=pool.groups,
        max_in_flight_tokens=in_flight_tokens(
            config.max_num_batched_tokens, config.async_scheduling
        ),
    )


@contextmanager
def under_policy(name: str) -> Iterator[None]:
    """What is raised inside says under which policy, at the end of its traceback: a comparison has many runs."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the run of policy {name}")
        raise


@dataclass(frozen=True)
class Assembly:
    """An engine with all that it was made of. Nothing has run yet when `assemble` returns it."""

    trace: Trace
    config: RunConfig
    pool: PoolSize
    cost: CostModel
    policy: Policy
    requests: RequestTable
    recorder: Recorder
    log: Decisions | None
    engine: EngineContract

    def finish(self, end_ns: int) -> dict[str, Any]:
        """The last event was at `end_ns`. Checks INV-5 and INV-8, and returns the summary of the run."""
        engine, pool = self.engine, self.pool
        engine.finish(end_ns)
        check_arrivals(self.requests)
        return {
            "policy": self.config.policy,
            **summarize(self.requests, self.recorder, pool.num_slots, end_ns),
            "num_clipped": len(self.requests.clipped_rows.union(self.trace.clipped_rows)),
            "kv_bytes_per_token": pool.kv_bytes_per_token,
            "pool_bytes": pool.pool_bytes,
            "group_windows": list(pool.groups.windows),
            "block_slots": pool.block_size * pool.groups.block_token_slots,
            "most_running": engine.most_running,
            "peak_used_share": 1 - engine.least_free_slots / pool.num_slots,
            "moved_slots": engine.moved_slots,
            "recomputed_tokens": engine.recomputed_tokens,
            "calibrated": self.cost.calibrated,
            "saturated": self.trace.saturated and not self.config.closed_loop,
            **engine.details(),
        }


def assemble(
    trace: Trace,
    config: RunConfig,
    *,
    snapshots: bool = False,
    decisions: bool = False,
    paranoid: bool = False,
    engine_type: type[EngineContract] | None = None,
) -> Assembly:
    """The engine for `trace` under `config.policy`. `engine_type` takes the place of the policy's own engine.

    `paranoid` recounts the pool after every plan and commit. Raises UserError for what the user can mend.
    """
    pool, cost = size_pool(config), load_cost(config)
    policy = find_policy(config.policy)(policy_settings(config, pool))
    sampling = Sampling(config.num_samples, config.beam_width, config.sample_lengths, config.seed)
    waits = closed_loop_waits(trace) if config.closed_loop else None
    requests = RequestTable.from_trace(
        trace, policy, pool.max_model_len, config.max_tokens, sampling, waits
    )
    # How long arrivals of a closed loop will take, nobody knows.
    span_ns = requests.arrival_ns[-1] if waits is None else 0
    recorder = Recorder(pool.num_slots, max(_SHORTEST_ROW_NS, 2 * span_ns // MAX_ROWS), snapshots)
    log = Decisions() if decisions else None
    limits = Limits(config.max_num_seqs, config.max_num_batched_tokens)
    engine = (engine_type or find_engine(type(policy)))(requests, policy, limits, recorder, log)
    engine.paranoid = paranoid
    return Assembly(trace, config, pool, cost, policy, requests, recorder, log, engine)
