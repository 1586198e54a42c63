"""Random cases: every axis at once, shapes nobody thought of."""

from typing import Any

from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtwin.gpu.check import Case, run_case
from kvtwin.gpu.check.case import LAYOUTS


@st.composite
def attention_cases(draw: st.DrawFn, kernel: str) -> Case:
    num_seqs = draw(st.integers(1, 4))
    context_lens = draw(st.lists(st.integers(0, 60), min_size=num_seqs, max_size=num_seqs))
    query_lens = []
    if kernel == "paged_prefill":
        query_lens = [draw(st.integers(0, min(length, 20))) for length in context_lens]
    is_decode = kernel != "paged_prefill"
    return Case(
        kernel,
        dtype=draw(st.sampled_from(["float16", "bfloat16", "float32"])),
        head_dim=draw(st.integers(1, 70)),
        block_size=draw(st.integers(1, 40)),
        num_kv_heads=draw(st.integers(1, 3)),
        group=draw(st.integers(1, 9)),
        context_lens=tuple(context_lens),
        query_lens=tuple(query_lens),
        num_padding=0 if is_decode else draw(st.integers(0, 40)),
        window=draw(st.integers(0, 70)),
        soft_cap=draw(st.sampled_from([0.0, 0.0, 1.5, 30.0])),
        sinks=draw(st.booleans()),
        layout=draw(st.sampled_from(LAYOUTS)),
        num_splits=draw(st.integers(1, 5)) if is_decode else 1,
        min_split_tokens=draw(st.integers(1, 30)) if is_decode else 1,
        tile_tokens=draw(st.sampled_from([16, 32])),
    )


@settings(max_examples=examples(15))
@given(data=st.data())
def test_decode(data: st.DataObject, on: dict[str, Any]) -> None:
    kernel = data.draw(st.sampled_from(["paged_decode", "contiguous_decode"]))
    check(data.draw(attention_cases(kernel)), on)


@settings(max_examples=examples(15))
@given(data=st.data())
def test_prefill(data: st.DataObject, on: dict[str, Any]) -> None:
    check(data.draw(attention_cases("paged_prefill")), on)


@settings(max_examples=examples(15))
@given(
    kernel=st.sampled_from(["store_kv", "copy_blocks", "swap_blocks"]),
    head_dim=st.integers(1, 70),
    block_size=st.integers(1, 20),
    num_kv_heads=st.integers(1, 4),
    layout=st.sampled_from(LAYOUTS),
    num_padding=st.integers(0, 3),
)
def test_copies(kernel: str, on: dict[str, Any], **fields: Any) -> None:
    check(Case(kernel, context_lens=(0, 3, 17), **fields), on)


def check(case: Case, on: dict[str, Any]) -> None:
    for backend in on.values():
        result = run_case(case, backend)
        assert result.passed, (case, result.verdict, result.error, result.tolerance)
