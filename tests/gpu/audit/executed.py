"""Executions on the torch operations with every slot looked at."""

from typing import Any

import torch

from kvtwin.gpu.audit import Audit
from kvtwin.gpu.twin.audited import AuditedSteps
from kvtwin.gpu.twin.backend import open_backend
from kvtwin.gpu.twin.content import ContentShape
from kvtwin.gpu.twin.driver import GivenClock
from kvtwin.gpu.twin.execution import execute
from kvtwin.sim import RunConfig
from kvtwin.traces import Trace

SHAPE = ContentShape(2, 2, 2, 16, torch.float16)


def audited_execution(trace: Trace, config: RunConfig, every_steps: int = 1) -> Audit:
    """Execute and look at every slot; where the manager breaks down, what was found until then."""
    watching: list[AuditedSteps] = []

    def observe(assembly: Any, executor: Any) -> list[AuditedSteps]:
        watching.append(AuditedSteps(assembly, executor, SHAPE, every_steps))
        return watching

    try:
        with open_backend("cpu", "torch") as backend:
            execute(
                trace,
                config,
                SHAPE,
                backend,
                GivenClock([config.constant_cost_ns]),
                observe=observe,
            )
    except (AssertionError, IndexError, RuntimeError):
        # A fault can also break the manager or the executor down.
        watching[0].audit.finish()
        if not watching[0].audit.findings.num_findings:
            raise
        return watching[0].audit
    watching[0].audit.finish()
    return watching[0].audit
