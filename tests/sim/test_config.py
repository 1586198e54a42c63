"""RunConfig: defaults, limits, TOML files, and what run.json gets."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from kvtwin.sim.config import RunConfig
from kvtwin.traces import UserError

MACHINE = {"model": "opt-13b", "gpu": "a100-40gb"}


def config(**fields: Any) -> RunConfig:
    return RunConfig(**(MACHINE | fields))


def write(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text)
    return path


def test_names_become_the_catalogues_own() -> None:
    made = config(model="facebook/opt-13b", gpu="A100 40GB")
    assert (made.model, made.gpu) == ("OPT-13B", "A100-40GB-SXM")
    assert made == config()


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("block_size", 0, "--block-size is 0; it must be at least 1"),
        ("block_size", 16.0, "--block-size is 16.0; it must be a whole number"),
        ("block_size", True, "--block-size is True; it must be a whole number"),
        ("tensor_parallel_size", 0, "--tensor-parallel-size is 0; it must be at least 1"),
        ("tensor_parallel_size", 7, "must divide the 40 attention heads"),
        ("num_gpu_blocks_override", 0, "--num-gpu-blocks-override is 0; it must be at least 1"),
        ("kv_cache_memory_bytes", -1, "--kv-cache-memory-bytes is -1; it must be at least 1"),
        ("gpu_memory_utilization", 0.0, "is 0.0; it must be above 0 and at most 1"),
        ("gpu_memory_utilization", 1.01, "is 1.01; it must be above 0 and at most 1"),
        ("gpu_memory_utilization", float("nan"), "is nan; it must be above 0 and at most 1"),
        ("gpu_memory_utilization", "0.9", "is '0.9'; it must be a number above 0"),
        ("watermark", -0.01, "--watermark is -0.01; it must be at least 0 and below 1"),
        ("watermark", 1.0, "--watermark is 1.0; it must be at least 0 and below 1"),
        ("max_model_len", 2049, "OPT-13B has positions for at most 2,048 tokens"),
        ("max_num_seqs", 0, "--max-num-seqs is 0; it must be at least 1"),
        ("max_model_len", -1, "--max-model-len is auto; a run needs the number"),
        ("max_num_batched_tokens", 255, "at least --max-num-seqs (256)"),
        ("max_num_seqs", 8193, "--max-num-seqs is 8193; it must be at most --max-num-batched"),
        ("block_size", 10**6 + 1, "--block-size is too large; it must be at most 1,000,000"),
        ("quantization", "awk", "--quantization awk is not known (did you mean awq?)"),
        ("enforce_eager", 1, "--enforce-eager is 1; it must be true or false"),
        ("model", "some/config.json", "is a file, which kvtwin size reads"),
        ("seed", -1, "--seed is -1; it must be at least 0"),
        ("growth_tokens", 0, "--growth-tokens is 0; it must be at least 1"),
        ("max_tokens", 0, "--max-tokens is 0; it must be at least 1"),
        ("kv_cache_dtype", "fp16", "it must be one of auto, bfloat16, float16, fp8"),
        ("admission", "ful", "(did you mean full?); it must be one of step, full"),
        ("fit", "worst", "it must be one of first, best"),
        ("compaction", 1, "--compaction is 1; it must be true or false"),
        ("policy", "", "--policy is ''; it must be a text"),
        ("cost", "constant:0", "after constant: it must have a whole number of ns, from 1 to"),
        ("cost", "constant:1e6", "after constant: it must have a whole number of ns"),
        ("model", "opt-13c", "--model opt-13c is not in the catalogue"),
        ("gpu", "a100", "--gpu a100 is ambiguous"),
    ],
)
def test_a_bad_value_is_refused_naming_flag_value_and_limit(
    field: str, value: Any, said: str
) -> None:
    with pytest.raises(UserError) as refused:
        config(**{field: value})
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gpu_memory_utilization", 1.0),
        ("watermark", 0.999),
        ("watermark", 0.0),
        ("max_model_len", 2048),
        ("max_num_batched_tokens", 256),
        ("cost", "constant:1"),
        ("kv_cache_dtype", "fp8"),
    ],
)
def test_limits_themselves_are_allowed(field: str, value: Any) -> None:
    assert getattr(config(**{field: value}), field) == value


def test_a_file_sets_fields_in_snake_and_kebab_case(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        'model = "opt-13b"\ngpu = "a100-40gb"\nblock-size = 32\nmax_num_seqs = 8\nwatermark = 0\n',
    )
    made = RunConfig.from_toml(path)
    assert made == config(block_size=32, max_num_seqs=8, watermark=0.0)
    assert isinstance(made.watermark, float)


def test_a_file_writes_counts_as_flags_do(tmp_path: Path) -> None:
    machine = 'model = "opt-13b"\ngpu = "a100-40gb"\n'
    path = write(tmp_path, machine + 'max-model-len = "2k"\nkv_cache_memory_bytes = "10G"\n')
    assert RunConfig.from_toml(path) == config(max_model_len=2000, kv_cache_memory_bytes=10 * 2**30)


def test_a_key_that_is_a_flag_alone_is_named_so(tmp_path: Path) -> None:
    path = write(tmp_path, "num-requests = 5\n")
    with pytest.raises(UserError, match=r"num-requests \(give it on the command line: --num-req"):
        RunConfig.from_toml(path, ["num_requests"])


def test_fewer_tokens_than_sequences_lower_the_sequences_unless_both_are_given() -> None:
    lowered = RunConfig.from_toml(None, **MACHINE, max_num_batched_tokens=100)
    assert (lowered.max_num_seqs, lowered.max_num_batched_tokens) == (100, 100)
    with pytest.raises(
        UserError, match=r"-tokens is 100; it must be at least --max-num-seqs \(101"
    ):
        RunConfig.from_toml(None, **MACHINE, max_num_batched_tokens=100, max_num_seqs=101)


def test_both_formats_of_fp8_are_stored_alike() -> None:
    assert config(kv_cache_dtype="fp8_e5m2") == config(kv_cache_dtype="fp8_e4m3")
    assert config(kv_cache_dtype="fp8_e4m3").kv_cache_dtype == "fp8"


def test_overrides_go_before_the_file_unless_they_are_none(tmp_path: Path) -> None:
    path = write(tmp_path, 'model = "opt-13b"\ngpu = "a100-40gb"\nblock_size = 32\nseed = 5\n')
    made = RunConfig.from_toml(path, block_size=8, seed=None, compaction=False)
    assert (made.block_size, made.seed) == (8, 5)


def test_without_a_file_the_overrides_stand_alone() -> None:
    assert RunConfig.from_toml(None, **MACHINE, block_size=None) == config()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\nblock_sise = 16\n", ":2: unknown key block_sise (did you mean block_size?)"),
        ("enable-prefix-caching = true\n", ":1: unknown key enable-prefix-caching (in runs it is"),
        (
            "no_enable_prefix_caching = 1\n",
            "(in runs it is the policy: vllm-v1 has it, vllm-v1-no-caching has not)",
        ),
        ("host = 'x'\n", ":1: unknown key host (how an engine answers its clients"),
        ("max-model-len = '8x'\n", ":1: max-model-len is '8x'; it must be a whole number"),
        ("max-model-len = 'auto'\n", ":1: max-model-len is auto; a run needs the number"),
        ("max-num-seqs = '8k'\n", ":1: max-num-seqs is '8k'; it must be a whole number"),
        ("seed = 1\nblock_size = 16.0\n", ":2: block_size is 16.0; it must be a whole number"),
        ("block-size = true\n", ":1: block-size is True; it must be a whole number"),
        ("block_size = 0\n", ":1: block_size is 0; it must be at least 1"),
        ("seed = 'a'\n", ":1: seed is 'a'; it must be a whole number"),
        ("compaction = 'yes'\n", ":1: compaction is 'yes'; it must be true or false"),
        ("model = 13\n", ":1: model is 13; it must be a text"),
        ("seed = 1\n[pool]\nblock_size = 16\n", ":2: unknown key pool"),
        ("pool.size = 16\n", ":1: unknown key pool"),
        ("block-size = 8\nblock_size = 8\n", ":2: key block_size is given twice"),
        ("seed = 1\nseed = 2\n", "not a TOML file: Cannot overwrite a value (at line 2"),
        ("seed =\n", "not a TOML file: Invalid value (at line 1"),
        ("", "no --model given and no key model in "),
        ('model = "opt-13b"\n', "no --gpu given and no key gpu in "),
    ],
)
def test_a_bad_file_is_refused_naming_file_line_and_key(
    tmp_path: Path, text: str, said: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UserError) as refused:
        RunConfig.from_toml(path)
    assert said in str(refused.value)
    assert "run.toml" in str(refused.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--config .*missing.toml: cannot be read: No such file"):
        RunConfig.from_toml(tmp_path / "missing.toml")
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        RunConfig.from_toml(tmp_path)
    path = tmp_path / "run.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not a TOML file"):
        RunConfig.from_toml(path)


def test_to_dict_is_plain_json_in_the_order_of_the_fields() -> None:
    made = config(max_tokens=7)
    names = [field.name for field in dataclasses.fields(RunConfig)]
    assert list(made.to_dict()) == names
    assert json.loads(json.dumps(made.to_dict())) == made.to_dict()
    assert RunConfig(**made.to_dict()) == made


def test_to_dict_names_a_cost_file_by_its_content_not_its_place(tmp_path: Path) -> None:
    content = b'{"schema_version": 1}'
    dicts = []
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "fit.json"
        path.write_bytes(content)
        dicts.append(config(cost=str(path)).to_dict())
    expected = {"file": "fit.json", "sha256": hashlib.sha256(content).hexdigest()}
    assert dicts[0]["cost"] == expected
    assert dicts[0] == dicts[1]
    assert str(tmp_path) not in json.dumps(dicts)


def test_a_relative_cost_file_lies_beside_the_configuration(tmp_path: Path) -> None:
    path = write(tmp_path, 'model = "opt-13b"\ngpu = "a100-40gb"\ncost = "fit.json"\n')
    assert RunConfig.from_toml(path).cost_file == tmp_path / "fit.json"
    assert RunConfig.from_toml(path, cost="fit.json").cost_file == Path("fit.json")
    assert RunConfig.from_toml(path, cost="roofline").cost_file is None


def test_a_missing_cost_file_is_refused() -> None:
    with pytest.raises(UserError, match="--cost roofine: cannot be read"):
        config(cost="roofine").to_dict()
