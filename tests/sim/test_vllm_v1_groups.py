"""Groups of layers in runs of vllm-v1: pools, needs and steps, computed by hand."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from example_counts import examples
from hand_runs import STEP_NS, run
from hypothesis import given, settings
from hypothesis import strategies as st
from made_models import attention, deployment, made_model, state
from random_cases import trace_of

from kvtwin.sim import RunConfig, pool, simulate, size_pool
from kvtwin.sim.block_groups import BlockGroups
from kvtwin.sim.grouping import vllm_groups
from kvtwin.sim.layers import LayerMemory
from kvtwin.sim.sizing.engines.vllm import Vllm
from kvtwin.traces import UserError

GEMMA = {"model": "gemma-3-27b", "gpu": "h100", "max_model_len": 4096}


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes vLLM group the layers of any model so."""

    def make(windows: tuple[int | None, ...], token_slots: tuple[int, ...]) -> None:
        groups = BlockGroups(windows, token_slots)
        monkeypatch.setattr(pool, "vllm_groups", lambda *_, **__: groups)

    return make


@pytest.mark.parametrize(
    ("model", "windows", "token_slots"),
    [
        # 10 full layers set the size of a group; 52 with a window go to six groups, in turn (vLLM 0.32).
        ("gemma-3-27b", (1024,) * 6 + (None,), (9, 9, 9, 9, 8, 8, 10)),
        ("gpt-oss-20b", (128, None), (1, 1)),  # 12 and 12, in turn, a window first
        ("mistral-7b-v0.1", (4096,), (1,)),
        ("llama-3.1-8b", (None,), (1,)),
        ("deepseek-v3", (None,), (1,)),
    ],
)
def test_groups_of_real_models(
    model: str, windows: tuple[int | None, ...], token_slots: tuple[int, ...]
) -> None:
    def sized(policy: str, **fields: Any) -> pool.PoolSize:
        return size_pool(
            RunConfig(
                model,
                "h200",
                policy=policy,
                num_gpu_blocks_override=7000,
                max_model_len=2048,
                **fields,
            )
        )

    grouped = sized("vllm-v1")
    assert (grouped.groups.windows, grouped.groups.token_slots) == (windows, token_slots)
    assert grouped.num_blocks == 7000
    assert grouped.num_slots == 7000 * 16 * max(token_slots)
    assert grouped.pool_bytes * sum(token_slots) == grouped.num_slots * grouped.kv_bytes_per_token
    # Whoever keeps all layers in a block has the same bytes, but for the rest of a block.
    full = sized("paged")
    block_bytes = 16 * full.kv_bytes_per_token
    assert 0 <= grouped.pool_bytes - full.pool_bytes < block_bytes
    assert full.groups.has_one_table
    off = sized("vllm-v1", disable_hybrid_kv_cache_manager=True)
    assert off.num_blocks == 7000
    # A model all of whose layers have the window keeps it, as in vLLM.
    assert off.groups.windows == (windows if len(windows) == 1 else (None,))
    said = any("--disable-hybrid-kv-cache-manager has no effect" in note for note in off.notes)
    assert said == (len(windows) == 1)
    assert not any("has no effect" in note for note in grouped.notes)


def test_a_pool_says_whether_vllm_would_start_with_it() -> None:
    """4,096 tokens of Gemma-3-27B: 256 blocks of the full group, and of each window at most all 256.

    Of windows vLLM wants min(1,023 + 512, 4,096) / 16 = 96 blocks and one more where a step has 512 tokens, so
    256 + 6 x 97 = 838, beside the null block.
    """
    for num_blocks, says in ((839, False), (838, True)):
        config = RunConfig(
            **GEMMA,
            max_num_batched_tokens=512,
            num_gpu_blocks_override=num_blocks,
            policy="vllm-v1",
        )
        notes = " ".join(size_pool(config).notes)
        assert ("wants 838 blocks beside the null block, of 838" in notes) == says
        assert "vllm-v1, with and without caching, frees what is behind" in notes
        assert "vLLM's blocks have 10 layers each, in 7 block tables of a request" in notes
        assert f"{num_blocks} have the bytes of {num_blocks * 10 // 62} of all layers" in notes


@pytest.mark.parametrize(
    ("layers", "hybrid"),
    [
        ((attention(), state(1000)), True),
        ((attention(), state(1000)), False),  # refused by vLLM
        ((attention(head_dim=128), attention(head_dim=64, window=9)), True),  # blocks of 16 and 32
        ((attention(head_dim=128), attention(head_dim=96, window=9)), True),  # pages with padding
    ],
)
def test_groups_that_are_not_simulated(
    monkeypatch: pytest.MonkeyPatch, layers: tuple[LayerMemory, ...], hybrid: bool
) -> None:
    """Every layer is in full, in one table, and the override counts blocks of all."""
    model = made_model(*layers)
    assert vllm_groups(deployment(model, block_size=16), hybrid=hybrid) is None
    config = RunConfig(
        "llama-3.1-8b",
        "h100",
        policy="vllm-v1",
        max_model_len=64,
        num_gpu_blocks_override=9,
        disable_hybrid_kv_cache_manager=not hybrid,
    )
    monkeypatch.setattr(RunConfig, "model_spec", model)
    sized = size_pool(config)
    assert sized.groups.has_one_table
    assert sized.pool_bytes == 9 * 16 * model.kv_bytes_per_token("auto", 1)
    assert any("kept in full" in note for note in sized.notes) == bool(model.sliding_window)


@settings(max_examples=examples(200))
@given(
    windows=st.lists(st.sampled_from([0, 1, 5, 16, 1000, 4096]), min_size=1, max_size=12),
    num_blocks=st.integers(1, 300),
    max_model_len=st.sampled_from([1, 16, 100, 2000]),
    fields=st.fixed_dictionaries(
        {
            "block_size": st.sampled_from([1, 8, 16, 100]),
            "max_num_batched_tokens": st.sampled_from([1, 16, 8192]),
        }
    ),
)
def test_sizing_says_the_same(
    windows: list[int], num_blocks: int, max_model_len: int, fields: dict[str, int]
) -> None:
    """Blocks, and whether vLLM starts with them: `kvtwin size` counts both from groups of its own."""
    model = made_model(*(attention(window=window) for window in windows))
    accounting = Vllm()
    sized = deployment(model, max_model_len=max_model_len, max_num_seqs=1, **fields)
    num_bytes = num_blocks * accounting.block_bytes(sized, 0)
    said = accounting.pool(sized, 0, num_bytes)
    wanted = said.bytes_to_admit(max_model_len) // said.block_bytes
    for num_given in (num_blocks, wanted, wanted + 1):
        config = RunConfig(
            "llama-3.1-8b",
            "h100",
            policy="vllm-v1",
            num_gpu_blocks_override=num_given,
            max_model_len=max_model_len,
            max_num_seqs=1,
            async_scheduling=True,  # as sizing has it
            **fields,
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RunConfig, "model_spec", model)
            simulated = size_pool(config)
        assert simulated.num_blocks == num_given
        would_start = accounting.pool(sized, 0, simulated.pool_bytes).fits(max_model_len)
        assert would_start != any("would not start" in note for note in simulated.notes)


def test_blocks_of_all_layers_may_be_larger_than_the_override() -> None:
    """6 blocks of 10 layers are less than one of 62, and 7 are enough."""
    with pytest.raises(UserError, match=r"raise --num-gpu-blocks-override.* to 7$"):
        size_pool(RunConfig(**GEMMA, num_gpu_blocks_override=6, policy="paged"))
    for policy, num_blocks in (("paged", 1), ("vllm-v1", 7)):
        config = RunConfig(**GEMMA, num_gpu_blocks_override=7, policy=policy)
        assert size_pool(config).num_blocks == num_blocks


@pytest.mark.parametrize(
    ("prompt", "async_scheduling", "wanted"), [(9, False, 10), (9, True, 12), (3, False, 6)]
)
def test_the_largest_need_is_what_vllm_wants(
    group: Any, tmp_path: Path, prompt: int, async_scheduling: bool, wanted: int
) -> None:
    """Blocks of 2; P 9, O 4: 12 tokens are 6 full blocks. Window 3, 4 tokens in a step: (2 + 4) / 2 + 1 = 4 blocks.

    With asynchronous scheduling 8 tokens are under way: (2 + 8) / 2 + 1 = 6. P 3 has 6 tokens: 3 full blocks, and in
    the window no more than these. And the null block; a pool of one less rejects it.
    """
    group((None, 3), (1, 1))
    for num_blocks, status in ((wanted + 1, "finished"), (wanted, "rejected")):
        out = tmp_path / str(num_blocks)
        config = RunConfig(
            "llama-3.1-8b",
            "a100-80gb",
            policy="vllm-v1",
            num_gpu_blocks_override=num_blocks,
            block_size=2,
            max_num_seqs=1,
            max_num_batched_tokens=4,
            cost="constant:1",
            async_scheduling=async_scheduling,
        )
        simulate(trace_of([(0, prompt, 4)]), config, out, paranoid=True)
        (request,) = pq.read_table(out / "requests.parquet").to_pylist()
        assert (request["status"], request["need_slots"], request["limit_slots"]) == (
            (status, 2 * wanted, 2 * (wanted - 1)) if status == "rejected" else (status, None, None)
        )


def test_a_window_moves_on(group: Any, tmp_path: Path) -> None:
    """Blocks of 2, a group in full and one with window 3, 3 layers to 1: a block has 2 x 3 slots, two thirds of them
    padding in the second group. P 5, O 4, at most 4 tokens in a step; E 8.

    Before a step with c tokens computed, blocks of the window wholly below c - 2 go: none at 0, with 4 the first
    (tokens 0 and 1), with 5 no more, with 6 the second, with 7 no more. What is freed is taken first.

    step  c  computes  full group  window
    0     0  4         takes 1 2   takes 3 4
    1     4  1         takes 3     frees 3, takes 5
    2     5  1
    3     6  1         takes 4     frees 4, takes 6
    4     7  1
    """
    group((None, 3), (3, 1))
    made = run(
        "vllm-v1-no-caching",
        [(0, 5, 4)],
        tmp_path,
        num_slots=2 * 20,
        block_size=2,
        max_num_batched_tokens=4,
        max_num_seqs=1,
    )
    assert made.finished_steps == [5]
    decisions = pq.read_table(tmp_path / "decisions.parquet").to_pylist()
    assert [(d["step"], d["action"], d["first"], d["branch"]) for d in decisions] == [
        *((0, "grant", block, 0) for block in (1, 2)),
        *((0, "grant", block, 1) for block in (3, 4)),
        (1, "free", 3, 1),
        (1, "extend", 3, 0),
        (1, "extend", 5, 1),
        (3, "free", 4, 1),
        (3, "extend", 4, 0),
        (3, "extend", 6, 1),
        *((4, "free", block, 0) for block in (4, 3, 2, 1)),
        *((4, "free", block, 1) for block in (6, 5)),
    ]
    # A token has 3 slots in the full group and 1 in the other; the null block and padding are rounding.
    parts = [
        tuple(row[f"{name}_slots"] for name in ("live", "reserved", "internal", "rounding", "free"))
        for row in made.timeline
    ]
    rounding = 6 + 2 * 4
    assert parts == [
        (0, 4 * 4, 0, rounding, 120 - 5 * 6),
        (4 * 3 + 2, 2 * 4, 0, rounding, 120 - 6 * 6),
        (5 * 3 + 3, 1 * 4, 0, rounding, 120 - 6 * 6),
        (6 * 3 + 2, 2 * 4, 0, rounding, 120 - 7 * 6),
        (7 * 3 + 3, 1 * 4, 0, rounding, 120 - 7 * 6),
    ]
    assert made.summary["pool_slots"] == 120
    assert made.summary["pool_bytes"] == 120 * made.summary["kv_bytes_per_token"] // 4
    assert made.summary["end_ns"] == 5 * STEP_NS


def test_as_many_blocks_may_come_as_go(group: Any, tmp_path: Path) -> None:
    """As above, P 9 and O 2: before the third step, with 8 tokens computed, both groups take a block, and the window
    gives back two. No more blocks are held than before, but a token in one of the first group takes 3 slots.

    step  c  computes  full group  window
    0     0  4         takes 2     takes 2
    1     4  4         takes 2     frees 1, takes 2
    2     8  1         takes 1     frees 2, takes 1
    3     9  1
    """
    group((None, 3), (3, 1))
    made = run(
        "vllm-v1-no-caching",
        [(0, 9, 2)],
        tmp_path,
        num_slots=2 * 20,
        block_size=2,
        max_num_batched_tokens=4,
        max_num_seqs=1,
    )
    assert made.finished_steps == [4]
    assert made.parts == [
        (0, 4 * 4, 0, 6 + 2 * 4, 0, 120 - 5 * 6),
        (4 * 3 + 2, 4 * 4, 0, 6 + 3 * 4, 0, 120 - 8 * 6),
        (8 * 3 + 2, 2 * 4, 0, 6 + 2 * 4, 0, 120 - 8 * 6),
        (9 * 3 + 3, 1 * 4, 0, 6 + 2 * 4, 0, 120 - 8 * 6),
    ]
