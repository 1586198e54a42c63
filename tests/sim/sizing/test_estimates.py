"""Memory beside weights and KV, by hand for Llama-3.1-8B: hidden 4,096, ffn 14,336, vocabulary 128,256."""

import pytest
from made_models import attention, deployment, made_model, state

from kvtwin.sim import find_model
from kvtwin.sim.sizing.deployment import Deployment
from kvtwin.sim.sizing.registry import find_accounting
from kvtwin.sim.sizing.size import size
from kvtwin.sim.sizing.stage_bytes import state_bytes_per_request

LLAMA = find_model("llama-3.1-8b")


def taken_off(what: Deployment, name: str, accounting: str = "vllm", stage: int = 0) -> int:
    (term,) = [
        term for term in find_accounting(accounting).budget(what, stage) if term.name == name
    ]
    return -term.num_bytes


@pytest.mark.parametrize(
    ("ranks", "bytes_per_token"), [(1, 110_592), (2, 67_584), (4, 46_080), (8, 35_328)]
)
def test_ranks_share_the_feed_forward_but_not_the_residual(
    ranks: int, bytes_per_token: int
) -> None:
    """3 x 4,096 + 3 x 14,336 / ranks elements of 2 B; the first of two stages does not sample."""
    what = deployment(LLAMA, tensor_parallel_size=ranks, pipeline_parallel_size=2)
    assert taken_off(what, "activations") == 8192 * bytes_per_token


@pytest.mark.parametrize(
    ("tensor", "pipeline", "num_bytes"),
    [(1, 1, 375_809_638), (1, 2, 2_254_857_830), (2, 1, 2_254_857_830), (2, 2, 2_254_857_830)],
)
def test_ranks_of_either_kind_need_buffers_to_talk(
    tensor: int, pipeline: int, num_bytes: int
) -> None:
    """0.35 GiB, and 2.1 where ranks talk to each other."""
    what = deployment(LLAMA, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline)
    assert taken_off(what, "non_torch") == num_bytes


def test_graphs_take_the_median_of_what_logs_state() -> None:
    """0.61 GiB."""
    assert taken_off(deployment(LLAMA), "cuda_graphs") == 654_982_512
    assert taken_off(deployment(LLAMA, enforce_eager=True), "cuda_graphs") == 0


def test_vllm_samples_for_no_more_sequences_than_a_step_has_tokens() -> None:
    """64 x 128,256 logits x 14.4 B are 118,200,730, and 0.12 GiB; with 32 sequences half of them."""
    what = deployment(LLAMA, max_num_seqs=1024, max_num_batched_tokens=64)
    assert taken_off(what, "activations") == 118_200_730 + 128_849_018
    fewer = deployment(LLAMA, max_num_seqs=32, max_num_batched_tokens=64)
    assert taken_off(fewer, "activations") == 59_100_365 + 128_849_018


def test_trtllms_step_has_8192_tokens() -> None:
    assert taken_off(deployment(LLAMA), "activations", "trtllm") == 8192 * 110_592
    fewer = deployment(LLAMA, max_num_batched_tokens=4096)
    assert taken_off(fewer, "activations", "trtllm") == 4096 * 110_592


def test_ranks_share_a_recurrent_state() -> None:
    """1,001 B over 4 ranks: 251 B, and 8 heads of 128 over 4: 1,024 B a token."""
    what = deployment(
        made_model(attention(), state(1001), state(1001)),
        tensor_parallel_size=4,
        kv_cache_memory_bytes=10**8,
    )
    assert state_bytes_per_request(what, 0) == 2 * 251
    sizing = size(what, find_accounting("exact"))
    assert (sizing.kv_bytes_per_token, sizing.fixed_bytes_per_request) == (1024, 2 * 251)
