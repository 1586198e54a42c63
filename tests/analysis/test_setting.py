"""From flags to a trace and a configuration."""

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

from kvtwin.analysis.definitions import latency_note
from kvtwin.analysis.facts import gather_facts, header_lines
from kvtwin.analysis.options import REFERENCE_HELP, Inputs
from kvtwin.analysis.setting import load_config, load_trace
from kvtwin.sim import RunConfig, size_pool
from kvtwin.traces import UserError, synthesize, write_trace


@pytest.fixture
def trace_path(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    write_trace(synthesize("sharegpt-like", 20, 1, rate=2.0), path, "kvtwin-csv")
    return path


def test_nothing_said_is_the_reference_setting() -> None:
    config, _ = load_config(Inputs(), policy=None)
    pool = size_pool(config)
    assert (config.model, pool.num_blocks, pool.num_slots) == ("OPT-13B", 983, 15_728)
    assert (pool.max_model_len, config.watermark) == (2048, 0.01)
    trace = load_trace(Inputs(), config.seed)
    assert (trace.name, trace.num_requests, trace.saturated) == ("sharegpt-like", 2000, True)


def test_a_workload_alone_keeps_the_reference_setting() -> None:
    inputs = Inputs(workload="alpaca-like", num_requests=10, rate=4.0)
    assert size_pool(load_config(inputs, policy=None)[0]).num_slots == 15_728
    trace = load_trace(inputs, 0)
    assert (trace.name, trace.num_requests, trace.saturated) == ("alpaca-like", 10, False)


@pytest.mark.parametrize(
    ("flags", "num_slots"),
    [
        ({"num_gpu_blocks_override": 100}, 1600),
        ({"kv_cache_memory_bytes": 2**30}, 1296),
        # Bigger blocks do not make the pool bigger.
        ({"block_size": 32}, 15_712),
    ],
)
def test_flags_go_before_the_reference_pool(flags: dict[str, Any], num_slots: int) -> None:
    assert size_pool(load_config(Inputs(**flags), policy=None)[0]).num_slots == num_slots


def test_a_utilization_sizes_the_pool_from_the_gpu() -> None:
    config, _ = load_config(Inputs(gpu_memory_utilization=0.8), policy=None)
    assert config.kv_cache_memory_bytes is None


def test_a_model_and_a_gpu_size_the_pool() -> None:
    config, _ = load_config(Inputs(model="llama-3.1-8b", gpu="h100"), policy="paged")
    assert (config.kv_cache_memory_bytes, config.max_model_len, config.watermark) == (
        None,
        None,
        None,
    )


def test_a_trace_needs_a_model_and_a_gpu(trace_path: Path) -> None:
    with pytest.raises(UserError, match=r"trace.csv needs --model and --gpu"):
        load_config(Inputs(trace=trace_path), policy=None)
    with pytest.raises(UserError, match=r"--gpu"):
        load_config(Inputs(trace=trace_path, model="opt-13b"), policy=None)


def test_a_trace_is_cut_and_sped_up(trace_path: Path) -> None:
    whole = load_trace(Inputs(trace=trace_path), 0)
    cut = load_trace(Inputs(trace=trace_path, num_requests=5, rate_scale=2.0), 0)
    assert (whole.num_requests, cut.num_requests) == (20, 5)
    last = whole.chunks[0].arrival_ns[4]
    assert cut.chunks[0].arrival_ns[-1] == (last + 1) // 2


def test_more_requests_than_the_trace_has_are_refused(trace_path: Path) -> None:
    assert load_trace(Inputs(trace=trace_path, num_requests=20), 0).num_requests == 20
    with pytest.raises(UserError, match=r"--num-requests is 21, but trace .* has 20 requests"):
        load_trace(Inputs(trace=trace_path, num_requests=21), 0)


def test_a_path_that_is_no_file_is_said_before_a_missing_model(tmp_path: Path) -> None:
    for trace, words in (
        (tmp_path, "is a directory"),
        (tmp_path / "no.csv", "does not exist"),
        (tmp_path / ("x" * 300), "cannot be read"),
    ):
        with pytest.raises(UserError, match=words):
            load_config(Inputs(trace=trace), policy=None)


def test_a_configuration_file_is_the_whole_setting(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('model = "opt-13b"\ngpu = "a100-40gb"\nblock-size = 8\nseed = 3\n')
    config, _ = load_config(Inputs(config=path, seed=4), policy="orca-max")
    assert (config.block_size, config.seed, config.policy) == (8, 4, "orca-max")
    assert config.kv_cache_memory_bytes is None


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            {"rate": 2.0},
            "--rate 2 is for generated requests, .*--rate-scale or --time-scale, .*--rate inf",
        ),
        ({"rate": float("nan")}, "--rate nan is for generated requests"),
        ({"rate": float("inf"), "rate_scale": 2.0}, "leaves --rate-scale nothing to change"),
        ({"rate": float("inf"), "spread": True}, "leaves --spread nothing to change"),
        ({"burstiness": 2.0}, "--burstiness is for generated requests"),
        ({"workload": "alpaca-like"}, "--workload is for generated requests"),
    ],
)
def test_a_trace_excludes_generator_flags(
    trace_path: Path, flags: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        load_trace(Inputs(trace=trace_path, **flags), 0)


@pytest.mark.parametrize(
    "flags",
    [
        {"format": "azure"},
        {"burstiness": 2.0},
        {"num_requests": 0},
        {"workload": "chat"},
        {"rate": -1.0},
        {"rate_scale": 0.0},
    ],
)
def test_bad_generator_flags_are_refused(flags: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        load_trace(Inputs(**flags), 0)


def test_help_gives_the_defaults_of_the_configuration() -> None:
    defaults = {field.name: field.default for field in fields(RunConfig)}
    hints = get_type_hints(Inputs, include_extras=True)
    checked = 0
    for name in defaults.keys() & hints.keys():
        found = re.search(r"\(default ([^),]+)\)", hints[name].__metadata__[0].help)
        if found:
            shown = {True: "yes", False: "no"}
            value = defaults[name]
            expected = shown[value] if isinstance(value, bool) else str(value)
            assert found[1] == expected, name
            checked += 1
    assert checked == 24


def test_help_describes_the_reference_setting() -> None:
    inputs = Inputs()
    config, _ = load_config(inputs, policy=None)
    pool, trace = size_pool(config), load_trace(inputs, 0)
    assert config.constant_cost_ns is not None
    assert config.kv_cache_memory_bytes is not None
    for words in (
        config.model,
        f"{config.kv_cache_memory_bytes // 2**30} GiB",
        f"{pool.num_blocks} blocks of {pool.block_size} slots",
        f"max-model-len {pool.max_model_len}",
        f"watermark {config.watermark}",
        f"constant steps of {config.constant_cost_ns // 10**6} ms",
        f"{trace.num_requests:,} {trace.name} requests",
    ):
        assert words in REFERENCE_HELP, words


def header(inputs: Inputs) -> list[str]:
    config, _ = load_config(inputs, policy=None)
    return header_lines(gather_facts(config, load_trace(inputs, config.seed)))


@pytest.mark.parametrize(
    ("fields", "shown"),
    [({}, None), ({"num_samples": 3}, "num_samples 3"), ({"beam_width": 4}, "beam_width 4")],
)
def test_several_sequences_are_named_and_explained(
    fields: dict[str, int], shown: str | None
) -> None:
    inputs = Inputs(num_requests=2, **fields)
    config, _ = load_config(inputs, policy="paged")
    facts = gather_facts(config, load_trace(inputs, config.seed))
    options = header_lines(facts)[-1]
    assert any("every other policy gives it one sequence" in note for note in facts["notes"]) == (
        shown is not None
    )
    assert shown is None or shown in options


def test_options_that_nobody_reads_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(policies: tuple[str, ...], **fields: Any) -> list[str]:
        inputs = Inputs(num_requests=2, **fields)
        config, _ = load_config(inputs, policy=None)
        facts = gather_facts(config, load_trace(inputs, config.seed), policies)
        return [note for note in facts["notes"] if "no effect" in note]

    assert said(("paged", "static"), async_scheduling=True, fit="best") == [
        "--fit has no effect on paged, static; it is read by contiguous",
        "--async-scheduling has no effect on paged, static; it is read by vllm-v1, vllm-v1-no-caching",
    ]
    assert said(("paged", "vllm-v1"), async_scheduling=True) == []
    assert said(("static",)) == []  # the watermark of the reference setting was not asked for
    assert said(("static",), watermark=0.3) == [
        "--watermark has no effect on static; it is read by paged, vllm-v1, vllm-v1-no-caching, vllm-v0, "
        "vllm-v0-prefix-caching"
    ]
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "contract"))
    assert said(("outside_policy:Halves",), watermark=0.3, fit="best") == []  # it does not say


def test_the_pool_is_shown_in_blocks_of_all_layers_if_any_policy_has_them() -> None:
    inputs = Inputs(model="gemma-3-27b", gpu="h100", num_gpu_blocks_override=7000, num_requests=2)

    def shown(*policies: str) -> tuple[int, int]:
        config, _ = load_config(inputs, policy=None)
        pool = gather_facts(config, load_trace(inputs, config.seed), policies)["pool"]
        return pool["num_blocks"], len(pool["groups"]["windows"])

    assert shown("vllm-v1", "vllm-v1-no-caching") == (7000, 7)
    assert shown("vllm-v1", "paged") == shown("paged", "vllm-v1") == (7000 * 10 // 62, 1)


def test_priorities_that_no_trace_gives_are_said_to_be_equal(tmp_path: Path) -> None:
    def said(path: Path | None, rule: str) -> bool:
        machine = {"model": "opt-13b", "gpu": "a100-40gb"} if path else {}
        inputs = Inputs(trace=path, num_requests=2, scheduling_policy=rule, **machine)
        facts = gather_facts(load_config(inputs, policy="vllm-v1")[0], load_trace(inputs, seed=0))
        return any("equally urgent" in note for note in facts["notes"])

    trace = synthesize("sharegpt-like", 2, 1)
    given = replace(trace, chunks=(replace(trace.chunks[0], priority=np.array([1, 0])),))
    write_trace(given, tmp_path / "t.parquet", "kvtwin-parquet")
    assert said(None, "priority")
    assert not said(None, "fcfs")
    assert not said(tmp_path / "t.parquet", "priority")


def test_the_header_says_what_is_run() -> None:
    assert header(Inputs(max_tokens=5000)) == [
        "OPT-13B on A100-40GB-SXM: max_model_len 2,048, max_num_seqs 256, "
        "max_num_batched_tokens 8,192",
        "Pool: 15,728 token slots = 983 blocks x 16 = 12.00 GiB, from kv_cache_memory_bytes; "
        "KV auto (16 bits)",
        "Trace: sharegpt-like (synthetic), 2,000 requests, all at once (saturated); "
        "step times: constant 45 ms",
        "Policy options: block_size 16, admission full, watermark 0.01, growth_tokens 16, "
        "fit first, compaction no, max_tokens 5,000, seed 0",
    ]


def test_the_header_of_several_gpus_and_of_arrivals(trace_path: Path) -> None:
    machine = {"model": "llama-3.1-8b", "gpu": "h100", "tensor_parallel_size": 2}
    lines = header(Inputs(trace=trace_path, kv_cache_dtype="fp8", **machine))
    assert lines[0].startswith("Llama-3.1-8B on 2 x H100-SXM (tensor parallel): ")
    assert lines[1].endswith(" GiB per GPU, from gpu_memory_utilization 0.92; KV fp8")
    assert re.search(r"20 requests, \d\.\d\d requests/s for \d+ s; step times: roofline$", lines[2])


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        ("constant:2500000000", "constant 2.5 s"),
        ("constant:1000", "constant 1 us"),
        ("constant:7", "constant 7 ns"),
    ],
)
def test_step_times_have_readable_units(cost: str, words: str) -> None:
    assert header(Inputs(cost=cost, num_requests=2))[2].endswith(f"step times: {words}")


def test_the_pool_says_where_it_comes_from() -> None:
    line = header(Inputs(num_gpu_blocks_override=100, num_requests=2))[1]
    assert "1,600 token slots = 100 blocks x 16" in line
    assert "from num_gpu_blocks_override;" in line


def test_the_note_on_latencies_depends_on_the_arrivals() -> None:
    assert latency_note(calibrated=True, saturated=False) is None
    saturated = latency_note(calibrated=False, saturated=True)
    over_time = latency_note(calibrated=False, saturated=False)
    assert saturated is not None
    assert over_time is not None
    assert saturated.startswith("UNCALIBRATED")
    assert over_time.startswith(f"{saturated}; requests arrive over time, so mean running")


def test_every_setting_of_a_run_has_a_flag() -> None:
    assert {field.name for field in fields(RunConfig)} - {"policy"} <= set(vars(Inputs()))
