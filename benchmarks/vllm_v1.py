"""Speed of the V1 scheduler and block manager alone, on two runs like those that the real one was measured on.

As a script it is one measurement, in a process of its own, and prints one JSON object.
"""

import argparse
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial

import numpy as np
from calibration import calibrated
from measure import Sample, peak_rss_bytes
from workload import QUICK_DIVISOR

from kvtwin.sim.vllm_v1.block_pool import BlockPool
from kvtwin.sim.vllm_v1.content import spans_of
from kvtwin.sim.vllm_v1.request import Request
from kvtwin.sim.vllm_v1.scheduler import Scheduler
from kvtwin.sim.vllm_v1.settings import SchedulerSettings

NUM_REQUESTS = 2000
_MAX_MODEL_LEN = 4096
_SEED = 18
Timed = tuple[int, Request]  # step of arrival


def _chats(num_requests: int, rng: np.random.Generator) -> Iterator[Timed]:
    """Chats of five turns, each of which repeats all before it, on four system prompts of 473 tokens."""
    num_chats = num_requests // 5
    begins = np.sort(rng.integers(0, int(1.5 * num_requests), num_chats)).tolist()
    requests = []
    for chat, step in enumerate(begins):
        pieces, num_tokens = [(chat % 4, 0, 473)], 473
        for turn in range(5):
            asked, said = (int(n) for n in rng.lognormal((3.6, 4.7), 0.8) + 1)
            stream = 1000 + 10 * (5 * chat + turn)
            pieces = [*pieces, (stream, 0, asked)]
            num_tokens += asked
            if num_tokens + said >= _MAX_MODEL_LEN:
                break
            requests.append((step, num_tokens, said, [*pieces, (stream + 1, 0, said)]))
            pieces = [*pieces, (stream + 1, 0, said)]
            num_tokens += said
            step += said + int(rng.integers(20, 200))
    for row, (step, num_prompt, num_output, content) in enumerate(sorted(requests)):
        request = Request(row, num_prompt, num_output, _MAX_MODEL_LEN)
        request.spans = spans_of(content)
        yield step, request


def _pressure(num_requests: int, rng: np.random.Generator) -> Iterator[Timed]:
    """Prompts and answers like no others, faster than memory allows."""
    for row in range(num_requests):
        num_prompt, num_output = (int(n) for n in rng.lognormal((5.0, 4.9), 0.8) + 1)
        yield int(1.5 * row), Request(row, num_prompt, min(num_output, 1500), _MAX_MODEL_LEN)


RUNS: dict[str, tuple[Callable[..., Iterator[Timed]], int, bool]] = {
    "chats": (_chats, 2600, True),
    "pressure": (_pressure, 2000, False),
}
"""By name: requests, blocks, prefix caching."""


def run(name: str, num_requests: int) -> dict[str, float]:
    """Schedule until every request has ended. Making the requests is not in `seconds`, naming their blocks is."""
    make, num_blocks, caches = RUNS[name]
    requests = list(make(num_requests, np.random.default_rng(_SEED)))
    settings = SchedulerSettings(
        num_blocks,
        _MAX_MODEL_LEN,
        max_num_seqs=128,
        max_num_batched_tokens=2048,
        enable_prefix_caching=caches,
    )
    scheduler = Scheduler(settings, BlockPool(num_blocks))
    gc.collect()
    gc.freeze()
    started = time.process_time()
    at = step = num_steps = num_running = preemptions = num_finished = 0
    while at < len(requests) or scheduler.running or scheduler.waiting:
        if not scheduler.running and not scheduler.waiting:
            step = requests[at][0]
        while at < len(requests) and requests[at][0] <= step:
            scheduler.add(requests[at][1])
            at += 1
        scheduled = scheduler.schedule()
        num_running += len(scheduler.running)
        preemptions += len(scheduled.preempted)
        num_finished += len(scheduler.update(scheduled))
        step += 1
        num_steps += 1
    return {
        "seconds": time.process_time() - started,
        "num_requests": len(requests),
        "num_finished": num_finished,
        "preemptions": preemptions,
        "mean_running": num_running / num_steps,
    }


def sample(name: str, num_requests: int) -> Sample:
    """One measurement in this process."""
    counts, loop_s = calibrated(partial(run, name, num_requests))
    return Sample(
        loop_s=loop_s,
        num_rejected=0,
        peak_rss_bytes=peak_rss_bytes(),
        **counts,  # type: ignore[arg-type]
    )


def v1_sample(name: str, quick: bool) -> Sample:
    """One measurement in a process of its own."""
    num_requests = NUM_REQUESTS // QUICK_DIVISOR if quick else NUM_REQUESTS
    command = [sys.executable, __file__, name, "--num-requests", str(num_requests)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return Sample(**json.loads(output))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=RUNS)
    parser.add_argument("--num-requests", type=int, default=NUM_REQUESTS)
    options = parser.parse_args()
    print(json.dumps(asdict(sample(options.name, options.num_requests))))
