"""CUDA's total: engines budget from it, and it is less than the driver's."""

from dataclasses import replace

import pytest
from made_models import GIB, attention, deployment, made_gpu, made_model

from kvtwin.sim import find_gpu
from kvtwin.sim.sizing.estimates import gpu_memory_terms
from kvtwin.sim.sizing.registry import accounting_names, find_accounting
from kvtwin.sim.sizing.terms import Source, sum_bytes


def test_what_the_driver_keeps_of_a_known_gpu_is_a_figure_of_the_catalogue() -> None:
    """An L4 has 23,034 MiB by nvidia-smi; public logs have 22.03 to 22.16 GiB, the median 22.045."""
    total, driver = gpu_memory_terms(deployment(made_model(attention()), gpu=find_gpu("l4")))
    assert (total.name, total.num_bytes) == ("gpu_memory", 23_034 * 2**20)
    assert (driver.name, driver.source) == ("driver", "catalogue")
    assert (total.num_bytes + driver.num_bytes) / GIB == pytest.approx(22.045, abs=0.005)


def test_half_a_gib_is_assumed_where_nobody_said() -> None:
    gpu = replace(made_gpu(24 * GIB), cuda_memory_bytes=None, cuda_memory_source="")
    _, driver = gpu_memory_terms(deployment(made_model(attention()), gpu=gpu))
    assert (driver.num_bytes, driver.source) == (-GIB // 2, "estimate")
    assert "assumed" in driver.detail


@pytest.mark.parametrize("source", ["given", "log"])
def test_a_total_that_is_given_is_cudas_already(source: Source) -> None:
    gpu = replace(find_gpu("l4"), memory_bytes=20 * GIB, source="--gpu-memory-gib")
    what = deployment(made_model(attention()), gpu=gpu, gpu_memory_source=source)
    (term,) = gpu_memory_terms(what)
    assert (term.name, term.num_bytes, term.source) == ("gpu_memory", 20 * GIB, source)


@pytest.mark.parametrize("name", accounting_names())
def test_what_the_driver_keeps_is_no_engines(name: str) -> None:
    """80 GiB of CUDA's make the same pool, whatever the driver keeps beside them."""
    accounting = find_accounting(name)
    kv_bytes = {
        sum_bytes(
            accounting.budget(
                deployment(
                    made_model(attention()),
                    gpu=made_gpu(80 * GIB, driver_bytes=kept),
                    memory_utilization=0.8,
                ),
                stage=0,
            )
        )
        for kept in (0, GIB, 3 * GIB)
    }
    assert len(kv_bytes) == 1
    assert kv_bytes.pop() < 0.8 * 80 * GIB
