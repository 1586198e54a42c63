"""Every case of the matrix and every probe, on the interpreted kernels and on torch."""

from typing import Any

import pytest

from kvtwin.gpu.check import KERNELS, Case, matrix, probe_cases, run_case, run_probe
from kvtwin.gpu.check.probes import probes_of

BACKENDS = ("triton-interpret", "torch")
CASES = matrix()
PROBES = [
    pytest.param(kernel, name, case, id=f"{kernel} {name} {case.label}")
    for kernel in KERNELS
    for case in probe_cases(kernel)
    for name in probes_of(kernel)
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kernel} {case.label}")
def test_case(case: Case, backend: str, on: dict[str, Any]) -> None:
    """Close to float64, no access out of range, and as many bytes as the traffic model has."""
    result = run_case(case, on[backend])
    assert result.passed, (result.verdict, result.error, result.tolerance)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("kernel", "name", "case"), PROBES)
def test_probe(kernel: str, name: str, case: Case, backend: str, on: dict[str, Any]) -> None:
    if name == "any split" and backend == "torch":
        pytest.skip("torch does not split")
    result = run_probe(name, case, on[backend])
    assert result.passed, (result.verdict, result.error, result.tolerance)


def values(kernel: str, field: str) -> set[Any]:
    """What the cases of a kernel have in a field."""
    return {getattr(case, field) for case in CASES if case.kernel == kernel}


@pytest.mark.parametrize("kernel", ["paged_decode", "paged_prefill", "contiguous_decode"])
def test_no_axis_is_missing(kernel: str) -> None:
    assert {64, 128, 256, 80, 96} <= values(kernel, "head_dim")
    assert {1, 3, 5, 7, 16} <= values(kernel, "group")
    assert {"float16", "bfloat16", "float32"} == values(kernel, "dtype")
    assert {0, 1, 17} <= values(kernel, "window")
    assert {0.0, 50.0} <= values(kernel, "soft_cap")
    assert values(kernel, "sinks") == {False, True}
    if kernel != "contiguous_decode":
        assert {1, 2, 7, 16, 48} <= values(kernel, "block_size")
        assert {"NHD", "HND", "interleaved", "mixed", "padded"} == values(kernel, "layout")
    if kernel == "paged_prefill":
        assert any(case.num_padding for case in CASES if case.kernel == kernel)
        assert any(0 in case.query_lens for case in CASES if case.kernel == kernel)
    else:
        assert {1, 2, 3, 16, 32} <= values(kernel, "num_splits")
        assert any(0 in case.context_lens for case in CASES if case.kernel == kernel)


def test_no_case_is_there_twice() -> None:
    names = [(case.kernel, case.label) for case in CASES]
    assert len(names) == len(set(names))


def test_the_quick_check_has_every_kernel_and_axis() -> None:
    quick = matrix(quick=True)
    assert {case.kernel for case in quick} == set(KERNELS)
    assert {case.dtype for case in quick} == {"float16", "bfloat16", "float32"}
    assert len(quick) < len(CASES) / 3
