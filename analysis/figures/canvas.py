"""How every figure is made and saved: one style, no display, the same bytes each time."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

# Figures are shown at about 100 pixels per inch; this keeps rasters crisp on finer screens.
PIXELS_PER_INCH = 144
STYLE = Path(__file__).parents[1] / "kvtwin.mplstyle"


@contextmanager
def canvas(width_inches: float, height_inches: float) -> Iterator[Figure]:
    """A figure in kvtwin's style; draw and save it inside the block, where the style holds."""
    with mpl.rc_context(fname=STYLE):
        # A Figure of its own, not pyplot's: nothing global, no display needed.
        yield Figure(figsize=(width_inches, height_inches))


def to_svg(figure: Figure) -> bytes:
    """SVG without a date, so that the same numbers give the same bytes."""
    return _saved(figure, format="svg", metadata={"Date": None, "Creator": None})


def to_png(figure: Figure) -> bytes:
    """PNG that names no software version, for the same reason."""
    return _saved(figure, format="png", metadata={"Software": None})


def _saved(figure: Figure, **options: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=PIXELS_PER_INCH, **options)
    return buffer.getvalue()
