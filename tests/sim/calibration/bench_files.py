"""Result files of `vllm bench serve` as a simulated engine with known step times would have made them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from kvtwin.sim import RunConfig, simulate
from kvtwin.sim.cost import SHIFT, TOTALS, CostModel, CostTerm
from kvtwin.sim.engine import Engine
from kvtwin.traces import Trace, synthesize

CLOCK_S = 5000.0  # the client's clock at the first arrival
# Step times of `measured`.
CONSTANT_NS = 8_000_000
KNOWN_NS = {
    "num_prefill_tokens": 60_000,
    "prefill_pairs": 4,
    "num_decode_tokens": 20_000,
    "decode_context_slots": 90,
}


def known_cost(path: Path, constant_ns: int, **coefficients_ns: int) -> CostModel:
    """A coefficients file of one term."""
    coefficients = tuple(coefficients_ns.get(name, 0) << SHIFT for name in TOTALS)
    cost = CostModel("known", True, (CostTerm("all", constant_ns << SHIFT, coefficients),))
    cost.save(path)
    return cost


def bench_file(
    trace: Trace, config: RunConfig, folder: Path, jitter_s: float = 0.0, seed: int = 0
) -> Path:
    """Simulate, and write what clients would have seen: each token at the end of its step, and up to

    `jitter_s` later. Nobody may be preempted.
    """
    ends_ns: list[int] = []

    class Watched(Engine):
        def commit(self, plan: Any, ends: Any) -> None:
            ends_ns.extend(ends)
            super().commit(plan, ends)

    summary = simulate(trace, config, folder / "run", engine_type=Watched)
    assert summary["preemptions"] == 0
    steps_s = np.array(ends_ns) / 1e9
    generator = np.random.default_rng(seed)
    file: dict[str, list[Any]] = {
        name: [] for name in ("input_lens", "output_lens", "ttfts", "itls", "start_times", "errors")
    }
    for row in pq.read_table(folder / "run" / "requests.parquet").to_pylist():
        first, last = np.searchsorted(
            ends_ns, [row["first_token_ns"], row["finished_ns"]], side="left"
        )
        tokens_s = steps_s[first : last + 1]
        assert len(tokens_s) == row["num_output_tokens"]
        tokens_s = tokens_s + generator.uniform(0, jitter_s, len(tokens_s))
        start_s = row["arrival_ns"] / 1e9
        file["input_lens"].append(row["num_prompt_tokens"])
        file["output_lens"].append(row["num_output_tokens"])
        file["ttfts"].append(tokens_s[0] - start_s)
        file["itls"].append(np.diff(tokens_s).tolist())
        file["start_times"].append(CLOCK_S + start_s)
        file["errors"].append("")
    path = folder / "bench.json"
    path.write_text(json.dumps(file))
    return path


def measured(
    folder: Path, rate: float | None, budget: int, jitter_s: float, num_requests: int = 150
) -> Path:
    """A result of that many requests on an engine with step times of KNOWN_NS and this budget of a step."""
    known_cost(folder / "cost.json", CONSTANT_NS, **KNOWN_NS)
    config = RunConfig(
        model="llama-3.1-8b",
        gpu="l4",
        max_model_len=4096,
        num_gpu_blocks_override=8000,
        max_num_batched_tokens=budget,
        max_num_seqs=64,
        cost=str(folder / "cost.json"),
    )
    return bench_file(
        synthesize("sharegpt-like", num_requests, 3, rate=rate), config, folder, jitter_s
    )
