"""Run cases and probes on a backend, and judge them."""

from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

from kvtwin.sim.traffic import Traffic

from .attention import run_attention, tuning_of
from .backends import INTERPRETED, Backend
from .case import Case
from .exact import run_copy, run_store, run_swap
from .inputs import NAN
from .matrix import KERNELS, matrix
from .merging import run_merge
from .probes import probes_of
from .result import Result
from .traffic import LOOK_UPS, traffic_of

RUNS = {
    "paged_decode": run_attention,
    "contiguous_decode": run_attention,
    "paged_prefill": run_attention,
    "store_kv": run_store,
    "copy_blocks": run_copy,
    "swap_blocks": run_swap,
    "merge_partials": run_merge,
}


def run_all(
    backends: Sequence[Backend],
    kernels: Sequence[str] = KERNELS,
    *,
    quick: bool = False,
    skip: Container[tuple[str, str, str]] = (),
) -> Iterator[Result]:
    """Every case and probe of `kernels` on every backend, one after the other.

    `skip`: (backend, kernel, configuration) of results that are there already.
    """
    for backend in backends:
        for kernel in kernels:
            for case in matrix((kernel,), quick=quick):
                if (backend.name, kernel, case.label) not in skip:
                    yield run_case(case, backend)
            for case in probe_cases(kernel)[: 1 if quick else None]:
                for name in probes_of(kernel):
                    if (backend.name, kernel, _probe_label(name, case)) in skip:
                        continue
                    # torch does not split, so it would be compared with itself.
                    if name != "any split" or backend.name != "torch":
                        yield run_probe(name, case, backend)


def run_case(case: Case, backend: Backend) -> Result:
    """Compare one case with its reference.

    In the interpreter every access is checked, and bytes are counted and compared with the traffic
    model. A kernel's own error becomes the result's problem.
    """
    run = RUNS[case.kernel]
    traffic = traffic_of(case, tuning_of(case)) if backend.name != "torch" else None
    return _judge(
        case.kernel, case.label, lambda: run(case, backend.ops, backend.device), backend, traffic
    )


def run_probe(name: str, case: Case, backend: Backend) -> Result:
    """One probe of `probes_of(case.kernel)`; in the interpreter every access is checked."""
    probe = probes_of(case.kernel)[name]
    return _judge(
        case.kernel,
        _probe_label(name, case),
        lambda: probe(case, backend.ops, backend.device),
        backend,
        None,
    )


def probe_cases(kernel: str) -> list[Case]:
    """What probes run on: block sizes and head ratios that are no powers of two, and windows."""
    plain = matrix((kernel,))[0]
    if kernel == "merge_partials":
        return [plain]
    case = replace(plain, group=3, block_size=5)
    windowed = replace(case, window=16, dtype="bfloat16", layout="mixed")
    if kernel != "paged_prefill":
        windowed = replace(windowed, num_splits=3)
    return [case, windowed]


def _probe_label(name: str, case: Case) -> str:
    return f"probe {name}: {case.label}"


def _judge(
    kernel: str,
    configuration: str,
    run: Callable[[], tuple[float, float]],
    backend: Backend,
    traffic: Traffic | None,
) -> Result:
    problem, error, tolerance = "", NAN, 0.0
    guard = None
    with ExitStack() as stack:
        if backend.name == INTERPRETED:
            from ..tools.guard import MemoryGuard

            guard = stack.enter_context(MemoryGuard())
        try:
            error, tolerance = run()
        except Exception as raised:  # whatever it is, the other cases must run
            problem = f"{type(raised).__name__}: {' '.join(str(raised).split())}"
    if guard is not None and traffic is not None and not problem:
        uncounted = LOOK_UPS.get(kernel, set())
        problem = _miscounted(guard.distinct_read_bytes, guard.written_bytes, traffic, uncounted)
    num_bytes = None if traffic is None else traffic.num_bytes
    return Result(backend.name, kernel, configuration, error, tolerance, num_bytes, problem)


def _miscounted(
    read: Counter[str], written: Counter[str], traffic: Traffic, uncounted: set[str]
) -> str:
    """What the interpreter counted otherwise than the model, by argument; "" if nothing."""
    for verb, counted, modelled in (
        ("read", read, traffic.read_bytes),
        ("written", written, traffic.written_bytes),
    ):
        by_argument: Counter[str] = Counter()
        for name, num_bytes in counted.items():
            by_argument[name.rpartition(".")[2].removesuffix("_ptr")] += num_bytes
        for name in sorted((by_argument.keys() | modelled.keys()) - uncounted):
            if by_argument[name] != modelled[name]:
                return f"{by_argument[name]} bytes of {name} {verb}, the model has {modelled[name]}"
    return ""
