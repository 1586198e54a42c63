"""A trace in a figure: arrivals over time, lengths, and what a prefix cache would hold."""

from matplotlib.axes import Axes

from ..trace_shape import TraceShape
from .canvas import canvas, to_svg

# Hues of Okabe and Ito (2008), apart for all common kinds of colour blindness.
_COLOURS = {"prompt": "#0072B2", "output": "#D55E00"}
_HITS = "#009E73"


def trace_page(shape: TraceShape) -> bytes:
    """SVG: two panels, and a third where the trace says what prompts hold."""
    num_panels = 2 if shape.hit_share is None else 3
    with canvas(4.4 * num_panels, 3.2) as figure:
        # Labels of an axis stand clear of the panel beside it.
        figure.set_layout_engine("constrained", w_pad=0.15)
        rate_ax, lengths_ax, *others = figure.subplots(1, num_panels)
        draw_rate(shape, rate_ax)
        draw_lengths(shape, lengths_ax)
        for ax in others:
            draw_hits(shape, ax)
        figure.suptitle(shape.name)
        return to_svg(figure)


def draw_rate(shape: TraceShape, ax: Axes) -> None:
    """Requests a second in each bin of time."""
    ax.stairs(shape.requests_per_s, shape.edges_s, fill=True, color=_COLOURS["prompt"])
    ax.set_title("Arrivals")
    ax.set_ylabel("requests/s")
    _time_axis(shape, ax)


def draw_lengths(shape: TraceShape, ax: Axes) -> None:
    """The share of requests with at most so many tokens."""
    for kind, (tokens, share) in shape.lengths.items():
        ax.step(tokens, share, where="post", color=_COLOURS[kind], label=f"{kind} tokens")
    ax.set_xscale("log")
    ax.set_ylim(0, 1.02)
    ax.set_xlabel("tokens")
    ax.set_ylabel("share of requests up to there")
    ax.set_title("Lengths")
    ax.grid(True)
    ax.legend(loc="best")  # where it covers least of the curves


def draw_hits(shape: TraceShape, ax: Axes) -> None:
    """The share of prompt tokens that an infinite cache would have held, in each bin of time."""
    assert shape.hit_share is not None, f"{shape.name} has no content"
    ax.stairs(shape.hit_share, shape.edges_s, fill=True, color=_HITS)
    ax.set_ylim(0, 1.02)
    ax.set_ylabel("share of prompt tokens")
    ax.set_title("In an infinite prefix cache (gaps: no arrivals)")
    _time_axis(shape, ax)


def _time_axis(shape: TraceShape, ax: Axes) -> None:
    ax.set_xlim(0, shape.edges_s[-1])
    ax.set_xlabel("time since the first arrival (s)")
    ax.grid(True)
