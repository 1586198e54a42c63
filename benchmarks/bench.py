"""Measure kvtwin's speed and write one table: `make bench`, or --quick for a smoke run.

No figure fails anything: goals are shown with yes or no.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from calibration import ITERATIONS
from machine import machine_lines
from measure import (
    LONG_MODEL,
    PER_TOKEN,
    SETTING,
    Sample,
    engine_sample,
    help_seconds,
    num_plans,
    shell_sample,
)
from table import GIGABYTES, SECONDS, Goal, Row, rate_row, ratio_row, render, unfinished_row
from vllm_v1 import RUNS as V1_RUNS
from vllm_v1 import v1_sample
from workload import QUICK_DIVISOR, RATES, SHELL_REPEATS, find_given, prepare, trace_path

from kvtwin.sim import policy_names
from kvtwin.traces import UserError

ROOT = Path(__file__).resolve().parents[1]
LONG_FACTOR = 10
MANY_REPEATS = 100


@dataclass(frozen=True)
class EngineJob:
    """What one process simulates, and in how many runs."""

    trace: str
    policy: str
    runs: int
    times: int = 1
    factor: int = 1


def run_engine_jobs(jobs: Sequence[EngineJob], folder: Path) -> dict[EngineJob, list[Sample]]:
    """All runs of all jobs, in turns, so that a slow minute of the machine hits them alike."""
    samples: dict[EngineJob, list[Sample]] = {job: [] for job in jobs}
    for turn in range(max(job.runs for job in jobs)):
        for job in jobs:
            if turn < job.runs:
                path = trace_path(folder, job.trace)
                samples[job].append(engine_sample(path, job.policy, job.times, job.factor))
                _progress(f"engine, {job.policy}, {job.trace}", samples[job][-1].seconds)
    return samples


def run_shell(folder: Path, runs: int) -> dict[str, list[Sample]]:
    """Whole processes on the repeated traces, in turns."""
    samples: dict[str, list[Sample]] = {name: [] for name in RATES}
    for _ in range(runs):
        for name, taken in samples.items():
            taken.append(shell_sample(trace_path(folder, name, SHELL_REPEATS), folder / "out"))
            _progress(f"kvtwin run, {name}", taken[-1].seconds)
    return samples


def measure_help(runs: int) -> Row:
    """Wall time of the help text: what every verb pays before it starts."""
    taken = [help_seconds() for _ in range(runs)]
    return Row(
        "kvtwin --help",
        "",
        SECONDS,
        tuple(seconds for seconds, _ in taken),
        tuple(seconds / loop_s for seconds, loop_s in taken),
        Goal("below", 0.4),
    )


def measure(folder: Path, quick: bool) -> tuple[list[Row], list[Sample], str]:
    """The rows of the table, all samples behind them, and how many plans were counted.

    One run each where `quick`.
    """
    three, five, seven = (1, 1, 1) if quick else (3, 5, 7)
    plain = {name: EngineJob(name, "paged", five) for name in RATES}
    long = {name: EngineJob(name, "paged", five, factor=LONG_FACTOR) for name in RATES}
    others = [EngineJob("steady", name, three) for name in policy_names() if name != "paged"]
    many = EngineJob("steady", "paged", 1, times=MANY_REPEATS)
    engine = run_engine_jobs([*plain.values(), *long.values(), *others, many], folder)
    shell = run_shell(folder, three)
    plans = {
        name: (
            num_plans(trace_path(folder, name), "paged", LONG_FACTOR),
            num_plans(trace_path(folder, name), "paged", 1),
        )
        for name in RATES
    }
    v1 = {name: [v1_sample(name, quick) for _ in range(five)] for name in V1_RUNS}
    peaks = [sample.peak_rss_bytes for sample in engine[many]]
    every = (*engine.values(), *shell.values(), *v1.values())
    samples = [sample for taken in every for sample in taken]
    rows = [
        *(rate_row("engine", name, engine[plain[name]], Goal("at_least", 20e3)) for name in RATES),
        *(rate_row("kvtwin run", name, shell[name], Goal("at_least", 12e3)) for name in RATES),
        *(
            ratio_row(
                f"time, tokens x {LONG_FACTOR}",
                name,
                engine[long[name]],
                engine[plain[name]],
                Goal("at_most", 1.5),
            )
            for name in RATES
        ),
        *(
            ratio_row(
                f"time a plan, tokens x {LONG_FACTOR}",
                name,
                engine[long[name]],
                engine[plain[name]],
                nums=plans[name],
            )
            for name in RATES
        ),
        ratio_row(
            f"time, requests x {MANY_REPEATS}",
            many.trace,
            engine[many],
            engine[plain[many.trace]],
            Goal("at_most", 1.15),
        ),
        Row(
            f"memory, requests x {MANY_REPEATS}",
            many.trace,
            GIGABYTES,
            tuple(peak / 1e9 for peak in peaks if peak is not None),
            goal=Goal("below", 1.5),
            samples=tuple(engine[many]),
        ),
        measure_help(seven),
        unfinished_row(samples),
        *(rate_row(f"engine, {job.policy}", job.trace, engine[job]) for job in others),
        # Ten times vLLM's own scheduler, which does 400 on runs like these.
        *(rate_row("scheduler of vllm-v1", name, v1[name], Goal("at_least", 4e3)) for name in v1),
    ]
    counted = "; ".join(f"{name} {few:,} and {many:,}" for name, (many, few) in plans.items())
    return rows, samples, counted


def report(quick: bool, given: Path | None) -> str:
    """Measure everything and return the report as Markdown."""
    started, machine = datetime.now(UTC), machine_lines()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        traces = prepare(given, folder, quick)
        rows, samples, counted = measure(folder, quick)
    command = "`benchmarks/bench.py --quick`" if quick else "`make bench`"
    smoke = f": 1/{QUICK_DIVISOR} of the sizes, so the figures mean little" if quick else ""
    lines = [
        f"{started:%Y-%m-%d %H:%M} UTC, {command}{smoke}",
        *machine,
        *(f"Trace {line}" for line in traces),
        *_method([sample.loop_s * 1e3 for sample in samples], counted),
    ]
    return "\n".join(["# Speed", "", render(rows), "", *(f"- {line}." for line in lines), ""])


def _method(loops_ms: Sequence[float], counted: str) -> list[str]:
    """What the words and figures of the table mean."""
    setting = ", ".join(f"{name} {value}" for name, value in SETTING.items())
    return [
        f"Setting: {setting}, policy paged; requests, timeline and parts are recorded",
        "Every run is a fresh process. `engine`: engine_s of its meta.json. `kvtwin run`: wall "
        f"time of the command on the trace repeated {SHELL_REPEATS} times, reading it included",
        f"A loop-unit is {ITERATIONS:,} turns of a fixed pure-Python loop, timed right before and "
        f"right after each run: here {statistics.median(loops_ms):.0f} ms (median; "
        f"{min(loops_ms):.0f} to {max(loops_ms):.0f}). `per loop`: the median figure with its "
        "seconds counted in loop-units, to compare machines and moments",
        f"`tokens x {LONG_FACTOR}`: engine time a request over that of `engine`, with prompts, "
        f"outputs, times between arrivals, {', '.join(PER_TOKEN)} all times {LONG_FACTOR} and as "
        "many blocks, so that about as many run at once and a prompt has as many chunks. The model "
        f"is {LONG_MODEL}: Llama-2-7B has too few positions, and here a block takes about as many "
        "bytes as before",
        f"`time a plan`: the same over how often the engine plans, which is once for every "
        f"admission, preemption or step that has to wait for a decision ({counted}, the second "
        f"with tokens x {LONG_FACTOR}). Tokens that become {LONG_FACTOR} times as many spread "
        "what fell into one step over steps of their own, and preempt more often",
        f"`requests x {MANY_REPEATS}`: the trace repeated {MANY_REPEATS} times in one run; engine "
        "time a request over that of `engine`, and the most memory that the process held "
        "(resident set, requests and trace included)",
        "`scheduler of vllm-v1`: CPU seconds of `benchmarks/vllm_v1.py`, which schedules without a clock: "
        "chats on shared system prompts, with prefix caching; and requests that share nothing, without, "
        "in a pool that is too small. vLLM's own scheduler does 380 to 430 requests/s on runs of such shapes",
        "`met` holds the median to the goal; a row without a goal is for information. `running`: "
        "mean number of running requests over the loaded window",
    ]


def _progress(what: str, seconds: float) -> None:
    print(f"{what}: {seconds:.2f} s", file=sys.stderr)


def _make_folder_of(file: Path) -> None:
    """Before minutes of measuring, not after. Raises UserError if it cannot be made."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {file}: {error.strerror}; name a file that can be made") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0; 2 after one line on stderr where the user can mend it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the sizes, once")
    parser.add_argument(
        "--traces", type=Path, metavar="DIR", help="folder of steady.csv and saturated.csv"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="report (default reports/bench.md; --quick: none)"
    )
    options = parser.parse_args(arguments)
    out = options.out
    if out is None and not options.quick:
        out = ROOT / "reports" / "bench.md"
    try:
        if out is not None:
            _make_folder_of(out)
        text = report(options.quick, find_given(options.traces, ROOT))
    except UserError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print(text)
    if out is not None:
        out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
