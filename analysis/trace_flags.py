"""The flags that say what to read from a trace, shared by the verbs that do so."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvtwin.traces import FORMATS, UserError

if TYPE_CHECKING:
    from pathlib import Path

    from kvtwin.traces import ReadOptions, Selection, Trace


_LARGEST_SIZE = 10**15  # as of every whole number of a configuration


def check_size(flag: str, value: int | None) -> None:
    """Raises UserError for a number of tokens or blocks that is out of range; None was not said."""
    if value is not None and value < 1:
        raise UserError(f"--{flag} is {value}; it must be at least 1")
    if value is not None and value > _LARGEST_SIZE:
        raise UserError(f"--{flag} is too large; it must be at most 10^15")


def _flag(help_text: str, metavar: str) -> Any:
    return typer.Option(
        help=help_text, metavar=metavar, rich_help_panel="Requests", show_default=False
    )


@dataclass(frozen=True)
class TraceFlags:
    """How to read a trace and which of its requests to take; None where nothing was said."""

    format: Annotated[
        str | None,
        _flag(f"Format of TRACE: {', '.join(FORMATS)} (default: found from its content).", "NAME"),
    ] = None
    columns: Annotated[
        str | None,
        _flag(
            "Columns of a flat CSV, JSONL or Parquet TRACE: arrival=NAME:UNIT (s, ms, us, ns or "
            "date), prompt=NAME, output=NAME, perhaps max_tokens=NAME and session=NAME.",
            "FIELD=NAME,...",
        ),
    ] = None
    tokenizer: Annotated[
        str | None, _flag("tokenizer.json or its folder, for a TRACE that holds text.", "PATH")
    ] = None
    trace_block_size: Annotated[
        int | None,
        _flag("Tokens of a block id, for Mooncake files of other tools (default 512).", "N"),
    ] = None
    skip: Annotated[int | None, _flag("Leave out the first N requests.", "N")] = None
    window: Annotated[
        str | None,
        _flag("Only arrivals from START to END (excluded), seconds after the first.", "START:END"),
    ] = None
    sample: Annotated[
        float | None,
        _flag("Only this share of the sessions, whole; a request on its own is one.", "SHARE"),
    ] = None
    rate_scale: Annotated[float | None, _flag("Arrivals F times as fast.", "F")] = None
    time_scale: Annotated[
        float | None, _flag("F times the time between arrivals, and of thinking.", "F")
    ] = None
    rate: Annotated[
        float | None, _flag("inf: all requests arrive at once, in the order of TRACE.", "inf")
    ] = None
    spread: Annotated[
        bool,
        typer.Option(
            "--spread",
            help="Spread requests that share a stamp over the time until the next stamp.",
            rich_help_panel="Requests",
        ),
    ] = False

    def options(self, seed: int) -> "ReadOptions":
        """What readers are told. Raises UserError for --columns that cannot be understood."""
        from kvtwin.traces import ReadOptions, parse_columns

        columns = {} if self.columns is None else parse_columns(self.columns)
        check_size("trace-block-size", self.trace_block_size)
        return ReadOptions(columns, self.tokenizer, seed, self.trace_block_size)

    def selection(self, num_requests: int | None, seed: int) -> "Selection":
        """Which requests to take. Raises UserError for values out of range."""
        from kvtwin.traces import Selection

        return Selection(
            skip=self.skip or 0,
            window_s=None if self.window is None else _window(self.window),
            sample=self.sample,
            num_requests=num_requests,
            seed=seed,
        )

    @property
    def changes_the_trace(self) -> bool:
        """Whether requests are left out or moved in time."""
        asked = (
            self.skip,
            self.window,
            self.sample,
            self.rate_scale,
            self.time_scale,
            self.rate,
        )
        return self.spread or any(value is not None for value in asked)


def read_trace(path: "Path", flags: TraceFlags, num_requests: int | None, seed: int) -> "Trace":
    """The requests of a file that are asked for. `seed` draws samples and what formats draw.

    Reading stops where no more is needed. Raises UserError for a bad file or bad flags.
    """
    from kvtwin.traces import open_trace, select, spread_batches

    _check_rate(path, flags)
    selection = flags.selection(num_requests, seed)
    # How long a batch has to spread is seen from the whole, before anything is left out.
    most_read = None if flags.spread else selection.most_read
    trace = open_trace(path, flags.format, flags.options(seed), most_read)
    trace = select(spread_batches(trace) if flags.spread else trace, selection)
    if flags.time_scale is not None:
        trace = trace.scale_time(flags.time_scale)
    if flags.rate is not None:
        return trace.at_once()
    return trace if flags.rate_scale is None else trace.scale_rate(flags.rate_scale)


def _check_rate(path: "Path", flags: TraceFlags) -> None:
    """Raises UserError for a --rate that a trace cannot be given, or that leaves another flag nothing to do."""
    if flags.rate is None:
        return
    if flags.rate != math.inf:
        raise UserError(
            f"--rate {flags.rate:g} is for generated requests, but trace {path} is given; change its speed with "
            "--rate-scale or --time-scale, or have all requests at once with --rate inf"
        )
    for name, is_given in (
        ("--rate-scale", flags.rate_scale is not None),
        ("--spread", flags.spread),
    ):
        if is_given:
            raise UserError(
                f"--rate inf has all requests arrive at once, which leaves {name} nothing to change; leave one out"
            )


def _window(text: str) -> tuple[float, float]:
    start, separator, end = text.partition(":")
    try:
        if separator:
            return float(start), float(end)
    except ValueError:
        pass
    raise UserError(f"--window is {text!r}; write START:END in seconds, like 0:3600")
