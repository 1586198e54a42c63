"""One measurement, in a process of its own, so that none warms or fills the memory of another.

As a script it is that process: it simulates and prints one JSON object.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from calibration import calibrated
from workload import lengthen, repeat

from kvtwin.sim import RunConfig, simulate
from kvtwin.sim.assembly import assemble
from kvtwin.sim.drive import drive
from kvtwin.sim.executor import CostExecutor
from kvtwin.sim.plan import Plan
from kvtwin.traces import open_trace

# Named after kvtwin's flags; what is absent has its default.
SETTING: dict[str, Any] = {
    "model": "Llama-2-7B",
    "gpu": "A100-80GB-SXM",
    "num_gpu_blocks_override": 7000,
    "block_size": 16,
    "max_model_len": 4096,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    "cost": "roofline",
}
PER_TOKEN = ("block_size", "max_model_len", "max_num_batched_tokens")
# Llama-2-7B has 4,096 positions. This one has 131,072, and its KV of one token is 1/10.7 of
# Llama-2-7B's, so that blocks ten times as long take about the same bytes and steps last about as
# long as before.
LONG_MODEL = "gpt-oss-20b"


@dataclass(frozen=True)
class Sample:
    """One run: what took how long, and what became of its requests."""

    seconds: float  # of the engine, or of the whole process
    loop_s: float  # of a loop-unit of calibration.py, around the same run
    num_requests: int
    num_finished: int
    num_rejected: int
    preemptions: int
    mean_running: float
    peak_rss_bytes: int | None = None  # of the process, where it was asked itself

    @property
    def all_finished(self) -> bool:
        return self.num_rejected == 0 and self.num_finished == self.num_requests


def setting(factor: int, policy: str) -> dict[str, Any]:
    """The setting for requests `factor` times as long: block count and concurrency stay."""
    values = SETTING | {name: SETTING[name] * factor for name in PER_TOKEN} | {"policy": policy}
    if policy == "slots":  # as many as there is room for max_model_len, so that nothing is rejected
        pool_slots = values["num_gpu_blocks_override"] * values["block_size"]
        values["max_num_seqs"] = pool_slots // values["max_model_len"]
    if factor == 1:
        return values
    # So many blocks of all layers: vLLM's own would be of one of two groups.
    return values | {"model": LONG_MODEL, "disable_hybrid_kv_cache_manager": True}


def engine_sample(trace: Path, policy: str = "paged", times: int = 1, factor: int = 1) -> Sample:
    """Engine seconds of a fresh process on `trace` repeated `times`, lengths times `factor`."""
    options = ["--policy", policy, "--times", str(times), "--factor", str(factor)]
    output = _run([sys.executable, __file__, str(trace), *options])
    return Sample(**json.loads(output))


class _CountingExecutor(CostExecutor):
    num_plans = 0

    def execute(self, plan: Plan) -> Sequence[int]:
        self.num_plans += 1
        return super().execute(plan)


def num_plans(trace: Path, policy: str, factor: int) -> int:
    """How often the engine has to decide something on `trace`, lengths times `factor`."""
    assembly = assemble(lengthen(open_trace(trace), factor), RunConfig(**setting(factor, policy)))
    executor = _CountingExecutor(assembly.cost)
    assembly.finish(drive(assembly.engine, executor))
    return executor.num_plans


def shell_sample(trace: Path, out: Path) -> Sample:
    """Wall seconds of `kvtwin run` on `trace` from the shell, results in `out`."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in setting(1, "paged").items()]
    command = [kvtwin_script(), "run", str(trace), *flags, "--out", str(out), "--force"]
    seconds, loop_s = calibrated(partial(_wall_seconds, command))
    summary = json.loads((out / "run.json").read_text(encoding="utf-8"))["summary"]
    return _sample(seconds, loop_s, summary)


def help_seconds() -> tuple[float, float]:
    """Wall seconds of `kvtwin --help`, and of a loop-unit around it."""
    return calibrated(partial(_wall_seconds, [kvtwin_script(), "--help"]))


def kvtwin_script() -> str:
    """The command that is installed beside this interpreter."""
    return str(Path(sys.executable).with_name("kvtwin"))


def _wall_seconds(command: Sequence[str]) -> float:
    started = time.perf_counter()
    _run(command)
    return time.perf_counter() - started


def _run(command: Sequence[str]) -> str:
    """Standard output of a command; its errors are passed on, and its failure ends the bench."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _sample(
    seconds: float, loop_s: float, summary: dict[str, Any], peak_rss_bytes: int | None = None
) -> Sample:
    counts = ("num_requests", "num_finished", "num_rejected", "preemptions", "mean_running")
    return Sample(
        seconds=seconds,
        loop_s=loop_s,
        peak_rss_bytes=peak_rss_bytes,
        **{name: summary[name] for name in counts},
    )


def _simulate(path: Path, policy: str, times: int, factor: int) -> Sample:
    """One simulation in this process: its requests, timeline and parts are recorded."""
    trace = lengthen(repeat(open_trace(path), times), factor)
    config = RunConfig(**setting(factor, policy))
    with tempfile.TemporaryDirectory() as folder:
        summary, loop_s = calibrated(partial(simulate, trace, config, Path(folder)))
        meta = json.loads((Path(folder) / "meta.json").read_text(encoding="utf-8"))
    return _sample(meta["engine_s"], loop_s, summary, peak_rss_bytes())


def peak_rss_bytes() -> int:
    """The most memory that this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes there, KiB on Linux


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--policy", required=True)
    parser.add_argument("--times", type=int, required=True)
    parser.add_argument("--factor", type=int, required=True)
    options = parser.parse_args()
    sample = _simulate(options.trace, options.policy, options.times, options.factor)
    print(json.dumps(asdict(sample)))


if __name__ == "__main__":
    main()
