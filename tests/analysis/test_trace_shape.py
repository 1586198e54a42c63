"""The figure of a trace: what it draws, by hand, and that it is the same file each time."""

from pathlib import Path

import numpy as np
import pytest
from format_cases import jsonl, write
from matplotlib.figure import Figure
from typer.testing import CliRunner

from kvtwin.analysis.commands.trace import app
from kvtwin.analysis.definitions import NS_PER_S
from kvtwin.analysis.figures import trace_page
from kvtwin.analysis.trace_shape import NUM_BINS, shape_of
from kvtwin.traces import Content, Trace, TraceChunk, UserError, open_trace

# A request a second, but for a gap; the last one has a prompt of before.
TIMES_S = [*range(60), *range(90, 100), 200]


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    rows = [
        {
            "timestamp": 1000 * time,
            "input_length": 512 if i % 2 else 1024,
            "output_length": 1 + i % 2,
            "hash_ids": [0] if time == 200 or i % 2 else [2 * i + 1, 2 * i + 2],
        }
        for i, time in enumerate(TIMES_S)
    ]
    rows[-1]["input_length"] = 512
    return open_trace(write(tmp_path / "t.jsonl", jsonl(*rows)))


def test_shape_by_hand(trace: Trace) -> None:
    shape = shape_of(trace)
    assert shape.edges_s.tolist() == list(range(NUM_BINS + 1))
    # The last bin has its right edge, too.
    wanted = np.zeros(NUM_BINS)
    wanted[[*range(60), *range(90, 100), 199]] = 1
    assert shape.requests_per_s.tolist() == wanted.tolist()
    assert shape.hit_share is not None
    # Every second request has the block that the second one brought.
    assert shape.hit_share[:5].tolist() == [0, 0, 0, 1, 0]
    assert shape.hit_share[199] == 1
    assert np.isnan(shape.hit_share[60:90]).all()
    tokens, share = shape.lengths["prompt"]
    assert tokens.tolist() == [512, 1024]
    assert share.tolist() == pytest.approx([36 / 71, 1])


def test_rates_are_a_second_and_hits_end_with_the_prompt(tmp_path: Path) -> None:
    """Bins of two seconds; a prompt that is the beginning of what was seen hits no more than itself."""
    content = np.array([0, 0, 0]), np.array([0, 0, 0]), np.array([700, 700, 700])
    chunk = TraceChunk(
        arrival_ns=[0, int(NS_PER_S), 2 * NUM_BINS * int(NS_PER_S)],
        num_prompt_tokens=[100, 100, 100],
        num_output_tokens=[601, 601, 601],
        max_tokens=[-1, -1, -1],
        content=Content(1, np.arange(4), *content),
    )
    shape = shape_of(Trace("drawn", "synthetic", (chunk,)))
    assert shape.requests_per_s[[0, 1, -1]].tolist() == [1, 0, 0.5]
    assert shape.hit_share is not None
    assert shape.hit_share[[0, -1]].tolist() == [0.5, 1]


def test_all_at_one_instant_is_one_bin(trace: Trace) -> None:
    shape = shape_of(trace.head(1))
    assert shape.edges_s.tolist() == [0, 1]
    assert shape.requests_per_s.tolist() == [1]


def test_panels_draw_the_shape(trace: Trace) -> None:
    shape = shape_of(trace)
    rate_ax, lengths_ax, hits_ax = Figure().subplots(1, 3)
    trace_page.draw_rate(shape, rate_ax)
    trace_page.draw_lengths(shape, lengths_ax)
    trace_page.draw_hits(shape, hits_ax)
    assert rate_ax.patches[0].get_data().values.tolist() == shape.requests_per_s.tolist()
    labels = [line.get_label() for line in lengths_ax.lines]
    assert labels == ["prompt tokens", "output tokens"]
    assert lengths_ax.lines[0].get_xdata().tolist() == [512, 1024]
    drawn = hits_ax.patches[0].get_data().values
    assert np.array_equal(drawn, shape.hit_share, equal_nan=True)
    assert trace_page.trace_page(shape) == trace_page.trace_page(shape_of(trace))


def test_info_writes_it_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens\n5,6\n7,8\n")
    out = tmp_path / "t.svg"

    def info(*more: str) -> None:
        arguments = ["info", str(path), "--out", str(out), *more]
        assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0

    info()
    first = out.read_bytes()
    assert first.startswith(b"<?xml")
    with pytest.raises(UserError, match=r"t\.svg exists already"):
        info()
    info("--force")
    assert out.read_bytes() == first
    with pytest.raises(UserError, match=r"t\.png: the figure is an SVG"):
        info("--out", str(tmp_path / "t.png"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.csv", "t.svg"]
