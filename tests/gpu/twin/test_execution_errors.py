"""What a policy does wrong when it is simulated or executed says under which policy."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from twin_cases import SHAPE, config_of, make_trace

from kvtwin.gpu import torch_ops
from kvtwin.gpu.check import Backend
from kvtwin.gpu.twin.driver import MeasuredClock
from kvtwin.gpu.twin.execution import execute
from kvtwin.gpu.twin.foresight import foresee
from kvtwin.sim.drive import drive

POLICY = "faulty_policies:LeakedBlock"
CONFIG = replace(config_of("paged"), policy=POLICY)


def simulated() -> None:
    foresee(make_trace(0), CONFIG, drive, paranoid=True)


def executed() -> None:
    backend = Backend("torch", torch_ops, "cpu")
    execute(make_trace(0), CONFIG, SHAPE, backend, MeasuredClock(), paranoid=True)


@pytest.mark.parametrize("run", [simulated, executed])
def test_a_broken_invariant_names_the_policy(run: Callable[[], None]) -> None:
    with pytest.raises(AssertionError, match="INV-") as raised:
        run()
    assert raised.value.__notes__ == [f"in the run of policy {POLICY}"]
