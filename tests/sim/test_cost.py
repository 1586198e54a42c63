"""Step durations: the integer model against the roofline derived a second time, and files."""

import json
import tomllib
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvtwin.sim.catalog import find_gpu, find_model, gpus, models
from kvtwin.sim.config import RunConfig
from kvtwin.sim.cost import SHIFT, TOTALS, CostModel, CostTerm, load_cost
from kvtwin.sim.model import ModelSpec
from kvtwin.traces import UserError

totals_up_to = [8192, 8192 * 4096, 131_072, 256, 256 * 8192, 65_536]
realistic = st.tuples(*(st.integers(0, most) for most in totals_up_to))
any_totals = st.tuples(*(st.integers(0, 10**12) for _ in TOTALS))


def config(**fields: Any) -> RunConfig:
    return RunConfig(**({"model": "opt-13b", "gpu": "a100-40gb"} | fields))


def heads_divide(model: ModelSpec, ranks: int) -> bool:
    many, few = max(model.num_kv_heads, ranks), min(model.num_kv_heads, ranks)
    return model.num_heads % ranks == 0 and many % few == 0


def derived_ns(made: RunConfig, totals: tuple[int, ...]) -> Fraction:
    """The roofline again: bytes and FLOPs of the whole step first, then divided by rates."""
    model, gpu, t = find_model(made.model), find_gpu(made.gpu), made.tensor_parallel_size
    prefill, pairs, prefill_context, decode, decode_context, moved = totals
    slot = model.kv_bytes_per_token(made.kv_cache_dtype, t)
    num_bytes = Fraction(model.weight_bytes, t)
    num_bytes += slot * (prefill + decode + prefill_context + decode_context)
    memory_s = num_bytes / gpu.hbm_bytes_per_s
    attention = 4 * model.num_heads * model.head_dim * model.num_layers
    peak = Fraction(gpu.bf16_flops_per_s) * t
    prefill_flops = 2 * model.num_active_params * prefill + attention * pairs
    decode_flops = 2 * model.num_active_params * decode + attention * decode_context
    compute_s = prefill_flops / (peak * Fraction(round(gpu.mfu_prefill * 100), 100))
    compute_s += decode_flops / (peak * Fraction(round(gpu.mfu_decode * 100), 100))
    reduced = (prefill + decode) * model.num_layers * 2 * model.hidden_size * 2
    link_s = reduced * Fraction(2 * (t - 1), t) / (gpu.nvlink_bytes_per_s or gpu.pcie_bytes_per_s)
    moves_s = Fraction(2 * slot * moved, gpu.hbm_bytes_per_s)
    return (max(memory_s, compute_s) + link_s + moves_s) * 10**9 + 2_000_000


def test_a_decode_step_of_opt_13b_by_hand() -> None:
    """30 sequences with 15,000 slots of context in all, on an A100-40GB (1555 GB/s).

    Weights 25,706,946,560 B take 16,531,798.4 ns; KV read 15,000 x 819,200 B 7,902,250.8 ns; KV
    written 30 x 819,200 B 15,804.5 ns; overhead 2,000,000 ns. Sum 26,449,853.7. Compute: 30 x 2 x
    12,853,473,280 FLOP + 15,000 x 819,200 FLOP at 0.18 x 312 TFLOP/s take 13,951,147 ns: less.
    """
    assert load_cost(config()).step_ns((0, 0, 0, 30, 15_000, 0)) == 26_449_854


def test_a_prefill_step_of_opt_13b_by_hand() -> None:
    """One prompt of 2,000 tokens: compute bound.

    2,000 x 2 x 12,853,473,280 FLOP + 2,001,000 pairs x 819,200 FLOP at 0.38 x 312 TFLOP/s take
    433,652,944.7 + 13,826,072.9 ns; overhead 2,000,000 ns. Sum 449,479,017.5.
    """
    totals = (2_000, 2_000 * 2_001 // 2, 2_000, 0, 0, 0)
    assert load_cost(config()).step_ns(totals) == pytest.approx(449_479_017.5, abs=1)


@given(
    model=st.sampled_from(models()),
    gpu=st.sampled_from(gpus()),
    ranks=st.sampled_from([1, 2, 4, 8]),
    dtype=st.sampled_from(["auto", "fp8"]),
    totals=realistic,
)
def test_the_roofline_equals_a_second_derivation(
    model: Any, gpu: Any, ranks: int, dtype: str, totals: tuple[int, ...]
) -> None:
    assume(heads_divide(model, ranks))
    made = config(model=model.name, gpu=gpu.name, tensor_parallel_size=ranks, kv_cache_dtype=dtype)
    exact = derived_ns(made, totals)
    error = abs(load_cost(made).step_ns(totals) - exact)
    assert error <= 1 + exact / 10**6
    # What rounding can do: half a unit of 2**-20 ns to each coefficient, half a ns at the end.
    assert error <= Fraction(1, 2) + Fraction(sum(totals) + 1, 2 ** (SHIFT + 1))


@given(
    cost=st.sampled_from(["roofline", "constant:5000"]),
    totals=any_totals,
    which=st.integers(0, len(TOTALS) - 1),
    more=st.integers(0, 10**9),
)
def test_more_work_never_takes_less_time(
    cost: str, totals: tuple[int, ...], which: int, more: int
) -> None:
    model = load_cost(config(cost=cost, tensor_parallel_size=2))
    larger = (*totals[:which], totals[which] + more, *totals[which + 1 :])
    assert model.step_ns(larger) >= model.step_ns(totals) >= 1


@pytest.mark.parametrize("which", range(len(TOTALS)))
def test_every_total_counts(which: int) -> None:
    totals = tuple(10**9 if which == total else 0 for total in range(len(TOTALS)))
    model = load_cost(config())
    assert model.step_ns(totals) > model.step_ns((0,) * len(TOTALS))


def test_all_reduces_cost_nothing_on_one_rank_and_more_over_pcie() -> None:
    """4 ranks: 2 x 3/4 of 2 x 80 x 8192 x 2 B a token over 300 GB/s one way: 13,107.2 ns."""
    many, one = (4096, 0, 0, 0, 0, 0), (0,) * len(TOTALS)

    def token_ns(gpu: str, ranks: int) -> float:
        made = config(model="llama-2-70b", gpu=gpu, tensor_parallel_size=ranks)
        flops = 2 * find_model("llama-2-70b").num_active_params / ranks
        peak = find_gpu(gpu).bf16_flops_per_s * find_gpu(gpu).mfu_prefill
        spent = load_cost(made).step_ns(many) - load_cost(made).step_ns(one)
        weights = find_model("llama-2-70b").weight_bytes / ranks / find_gpu(gpu).hbm_bytes_per_s
        return (spent + weights * 1e9) / 4096 - flops / peak * 1e9

    assert token_ns("a100-80gb", 4) == pytest.approx(13_107.2, abs=0.01)
    assert token_ns("a100-80gb", 1) == pytest.approx(0, abs=0.01)
    assert token_ns("l40s", 4) == pytest.approx(13_107.2 * 300 / 31, abs=0.01)


def test_the_roofline_says_what_it_is() -> None:
    model = load_cost(config(model="deepseek-v3", gpu="h200", tensor_parallel_size=8))
    assert not model.calibrated
    notes = " ".join(model.notes)
    for said in ("UNCALIBRATED", "assumed as H100", "2 ms of fixed overhead", "every expert"):
        assert said in notes


def test_constant_steps() -> None:
    model = load_cost(config(cost="constant:12345"))
    assert {model.step_ns((0,) * 6), model.step_ns((9, 9, 9, 9, 9, 9))} == {12_345}
    assert not model.calibrated


@pytest.mark.parametrize(("units", "ns"), [(0, 1), (3 << SHIFT - 1, 2), ((3 << SHIFT - 1) - 1, 1)])
def test_rounding_is_half_up_and_at_least_one(units: int, ns: int) -> None:
    model = CostModel("x", False, (CostTerm("only", units, (0,) * 6),))
    assert model.step_ns((0,) * 6) == ns


def test_the_longest_term_counts() -> None:
    first = CostTerm("first", 5 << SHIFT, (0,) * 6)
    second = CostTerm("second", 0, (1 << SHIFT, 0, 0, 0, 0, 0))
    model = CostModel("x", True, (first, second))
    assert [model.step_ns((n, 0, 0, 0, 0, 0)) for n in (0, 4, 6)] == [5, 5, 6]


def test_wrong_shapes_are_bugs() -> None:
    with pytest.raises(AssertionError):
        CostTerm("short", 0, (1, 2))
    with pytest.raises(AssertionError):
        CostTerm("negative", -1, (0,) * 6)
    with pytest.raises(AssertionError):
        load_cost(config()).step_ns((1, 2, 3))


@pytest.fixture(scope="module")
def fit_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file for all examples of a property; each writes it anew."""
    return tmp_path_factory.mktemp("cost") / "fit.json"


units = st.integers(0, 2**60)
terms = st.builds(CostTerm, st.text(min_size=1), units, st.tuples(*(units for _ in TOTALS)))


@given(
    model=st.builds(
        CostModel,
        st.text(min_size=1),
        st.booleans(),
        st.lists(terms, min_size=1, max_size=3).map(tuple),
        st.lists(st.text(), max_size=2).map(tuple),
    )
)
def test_a_file_holds_the_whole_model(fit_file: Path, model: CostModel) -> None:
    model.save(fit_file)
    assert CostModel.from_file(fit_file) == model
    assert load_cost(config(cost=str(fit_file))) == model


def test_toml_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "fit.toml"
    path.write_text(
        'schema_version = 1\nname = "fit"\ncalibrated = true\n[[terms]]\nname = "all"\n'
        "constant = 3145728\n[terms.coefficients]\n"
        + "".join(f"{total} = {number << SHIFT}\n" for number, total in enumerate(TOTALS))
    )
    model = CostModel.from_file(path)
    assert model.calibrated
    assert model.step_ns((1, 1, 1, 1, 1, 1)) == 3 + 15
    assert tomllib.loads(path.read_text())["name"] == model.name


def broken(change: dict[str, Any]) -> str:
    term = {"name": "all", "constant": 1, "coefficients": dict.fromkeys(TOTALS, 0)}
    whole = {"schema_version": 1, "name": "fit", "calibrated": False, "terms": [term]}
    for place, value in change.items():
        target: Any = whole
        *path, last = place.split("/")
        for step in path:
            target = target[int(step) if step.isdigit() else step]
        if value is None:
            del target[last]
        else:
            target[last] = value
    return json.dumps(whole)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not a coefficients file: Expecting property name"),
        ("[]", "the file is []; it must be a table of named values"),
        (broken({"schema_version": 2}), "schema_version is 2; it must be 1"),
        (broken({"schema_version": True}), "schema_version is True; it must be a whole number"),
        (broken({"schema_version": None}), "the file has no schema_version; add it"),
        (broken({"unit": "ns"}), "unit is 'ns'; it must be '2**-20 ns'"),
        (broken({"calibrated": "yes"}), "calibrated is 'yes'; it must be true or false"),
        (broken({"calibrated": None}), "the file has no calibrated; add it"),
        (broken({"calibratd": True}), "unknown key calibratd in the file (did you mean calibrated"),
        (broken({"notes": "n"}), "notes is 'n'; it must be a list of texts"),
        (broken({"name": ""}), "name is ''; it must be a text"),
        (broken({"terms": []}), "terms is []; it must be a list of at least one term"),
        (broken({"terms/0/constant": -1}), "terms[0].constant is -1; it must be a whole number"),
        (broken({"terms/0/constant": 1.5}), "terms[0].constant is 1.5; it must be a whole number"),
        (
            broken({"terms/0/coefficients/moved_slots": -3}),
            "terms[0].coefficients.moved_slots is -3; it must be a whole number from 0 to 2**60",
        ),
        (
            broken({"terms/0/coefficients/moved_slots": None}),
            "terms[0].coefficients has no moved_slots; add it",
        ),
        (
            broken({"terms/0/coefficients/moved_slot": 1}),
            "unknown key moved_slot in terms[0].coefficients (did you mean moved_slots?)",
        ),
    ],
)
def test_a_bad_file_is_refused_naming_file_and_field(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "fit.json"
    path.write_text(text)
    with pytest.raises(UserError) as refused:
        load_cost(config(cost=str(path)))
    assert str(refused.value).startswith(f"--cost {path}: ")
    assert said in str(refused.value)


def test_an_unchanged_file_is_good(tmp_path: Path) -> None:
    """So that each refusal above is for its change alone."""
    path = tmp_path / "fit.json"
    path.write_text(broken({}))
    assert load_cost(config(cost=str(path))).step_ns((0,) * 6) == 1


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(UserError, match="--cost roofine: cannot be read: No such file"):
        load_cost(config(cost="roofine"))
