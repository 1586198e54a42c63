"""Many runs, two at a time."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtwin.sim import RunConfig, simulate
from kvtwin.traces import Trace, UserError

from .ending import starting_children
from .no_pandas import without_pandas

NUM_PROCESSES = 2


@dataclass(frozen=True)
class Job:
    """One run: `trace` under `config` into `out_dir`."""

    trace: Trace
    config: RunConfig
    out_dir: Path
    paranoid: bool


def simulate_all(
    jobs: Sequence[Job], meanwhile: Callable[[], object] = lambda: None
) -> list[dict[str, Any]]:
    """Run all jobs with snapshots; return their summaries in the order of `jobs`.

    `meanwhile` is called once while the workers work.

    Raises:
        UserError: of the first job that fails, in the order of `jobs`.
    """
    # spawn everywhere: a forked child would inherit the threads of pyarrow in an unknown state.
    with starting_children():
        processes = ProcessPoolExecutor(
            min(NUM_PROCESSES, len(jobs)),
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start_worker,
        )
    with processes:
        try:
            with starting_children():
                futures = [processes.submit(_simulate, job) for job in jobs]
            meanwhile()
            return [future.result() for future in futures]
        except BrokenProcessPool as error:
            raise UserError(
                "a worker process was killed, perhaps for want of memory; free some, or use fewer requests"
            ) from error
        except BaseException:
            # Nobody wants what still runs. Without its workers the pool gives up what is left, and
            # leaving the block waits until they are gone.
            for worker in multiprocessing.active_children():
                worker.kill()
            raise


def _start_worker() -> None:
    without_pandas()
    # A worker whose parent was killed would wait for work for ever.
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker without a parent"
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def _simulate(job: Job) -> dict[str, Any]:
    return simulate(job.trace, job.config, job.out_dir, snapshots=True, paranoid=job.paranoid)
