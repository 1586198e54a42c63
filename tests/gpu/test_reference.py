"""The float64 reference against arithmetic by hand and another implementation."""

import math

import numpy as np
import pytest
import torch

from kvtwin.gpu.check.reference import attention


def test_by_hand() -> None:
    """Two keys with scores 0 and ln 3 weigh 1/4 and 3/4."""
    query = np.array([[[2.0]]])
    key = np.array([[[0.0]], [[math.log(3) / 2]]])
    value = np.array([[[4.0]], [[8.0]]])
    assert attention(query, key, value, scale=1.0)[0, 0, 0] == pytest.approx(7.0, rel=1e-12)
    # The scale halves the second score: weights 1 and sqrt(3).
    halved = (4 + 8 * math.sqrt(3)) / (1 + math.sqrt(3))
    assert attention(query, key, value, scale=0.5)[0, 0, 0] == pytest.approx(halved, rel=1e-12)


def test_a_sink_takes_its_share_and_gives_nothing() -> None:
    """Scores 0 and ln 3, and a sink of ln 4: weights 1/8 and 3/8."""
    query, key = np.array([[[1.0]]]), np.array([[[0.0]], [[math.log(3)]]])
    value = np.array([[[8.0]], [[16.0]]])
    out = attention(query, key, value, scale=1.0, sinks=np.array([math.log(4)]))
    assert out[0, 0, 0] == pytest.approx(7.0, rel=1e-12)


def test_a_soft_cap_bends_scores_before_the_softmax() -> None:
    query, key = np.array([[[1.0]]]), np.array([[[0.0]], [[1000.0]]])
    value = np.array([[[0.0]], [[1.0]]])
    # tanh(1000 / 2) is 1: the scores are 0 and 2.
    out = attention(query, key, value, scale=1.0, soft_cap=2.0)
    assert out[0, 0, 0] == pytest.approx(math.e**2 / (1 + math.e**2), rel=1e-12)


def test_window_and_causality_by_position() -> None:
    """V is 10^position: the digits of (output x keys seen) say which keys were seen."""
    query, key = np.zeros((3, 1, 1)), np.zeros((5, 1, 1))
    value = 10.0 ** np.arange(5).reshape(5, 1, 1)
    everything = attention(query, key, value, scale=1.0)[:, 0, 0]
    assert everything * [3, 4, 5] == pytest.approx([111, 1111, 11111])
    windowed = attention(query, key, value, scale=1.0, window=2)[:, 0, 0]
    assert windowed * 2 == pytest.approx([110, 1100, 11000])


def test_heads_of_a_group_share_their_kv_head() -> None:
    query = np.zeros((1, 6, 1))
    value = np.array([[[1.0], [2.0]]])
    out = attention(query, np.zeros((1, 2, 1)), value, scale=1.0)
    assert out[0, :, 0].tolist() == [1, 1, 1, 2, 2, 2]


def test_nothing_seen_gives_zero() -> None:
    out = attention(np.ones((1, 2, 4)), np.zeros((0, 1, 4)), np.zeros((0, 1, 4)), scale=1.0)
    assert out.tolist() == np.zeros((1, 2, 4)).tolist()


@pytest.mark.parametrize("window", [0, 4])
def test_equals_torch_in_float64(window: int) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(n, heads, 16, dtype=torch.float64, generator=generator)
        for n, heads in ((5, 6), (9, 2), (9, 2))
    )
    positions, tokens = torch.arange(4, 9)[:, None], torch.arange(9)
    seen = tokens <= positions
    if window:
        seen &= tokens > positions - window
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *(tensor.transpose(0, 1) for tensor in (query, key, value)),
        attn_mask=seen,
        scale=0.3,
        enable_gqa=True,
    ).transpose(0, 1)
    out = attention(*(t.numpy() for t in (query, key, value)), scale=0.3, window=window)
    assert np.abs(out - wanted.numpy()).max() < 1e-13
