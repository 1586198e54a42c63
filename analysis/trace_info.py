"""What `kvtwin trace info` says of a trace, for people and for scripts."""

from collections.abc import Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any

from kvtwin.traces import LengthSummary, PrefixHits, TraceSummary
from kvtwin.traces.formats.checks import shown
from kvtwin.traces.hits import DEFINITION
from kvtwin.traces.summary import IDLE_GAP_S

_MOST_KEYS = 12  # --json has them all


def info_lines(summary: TraceSummary) -> list[str]:
    """A line a fact, then what was assumed."""
    lines = [
        f"trace              {summary.name} ({summary.format})",
        f"requests           {summary.num_requests:,}",
        f"skipped rows       {_counts(summary.skipped)}",
        f"span               {summary.span_s:,.3f} s, {summary.num_distinct_arrivals:,} different"
        f" arrival time{'' if summary.num_distinct_arrivals == 1 else 's'}",
    ]
    if summary.unknown_keys:
        lines.insert(3, f"keys not read      {_key_counts(summary.unknown_keys)}")
    if summary.rate is None:
        lines.append("rate               none: saturated, all requests arrive at one instant")
    else:
        lines += _arrival_lines(summary)
    if summary.num_with_max_tokens:
        lines.append(f"max_tokens         given for {summary.num_with_max_tokens:,} requests")
    if summary.num_priorities is not None:
        lines.append(f"priorities         {summary.num_priorities:,} different ones")
    if summary.mean_samples is not None:
        lines.append(
            f"samples            {summary.mean_samples:,.2f} outputs of a prompt on average"
        )
    lines += [
        _length_line("prompt tokens", summary.prompt),
        _length_line("output tokens", summary.output),
    ]
    if summary.sessions is not None:
        lines += _session_lines(summary)
    lines += [line for hits in summary.hits for line in _hit_lines(hits)]
    if summary.hits:
        lines.append(f"  {DEFINITION}")
    return [*lines, *(f"note: {note}" for note in summary.notes)]


def info_facts(summary: TraceSummary) -> dict[str, Any]:
    """The same as JSON types."""
    hits = [
        asdict(hits) | {"block_share": hits.block_share, "token_share": hits.token_share}
        for hits in summary.hits
    ]
    facts = asdict(summary) | {"hits": hits, "verdict": verdict(summary)}
    return facts | ({"hit_definition": DEFINITION} if hits else {})


def verdict(summary: TraceSummary) -> str:
    """The trace in a sentence."""
    if summary.rate is None:
        arrivals = "saturated"
    else:
        arrivals = f"{summary.rate:,.3g} requests/s over {summary.span_s:,.0f} s"
    return (
        f"{summary.num_requests:,} requests, {arrivals},"
        f" {summary.prompt.mean:,.0f} prompt and {summary.output.mean:,.0f} output tokens each"
        " on average."
    )


def _arrival_lines(summary: TraceSummary) -> list[str]:
    burstiness = "" if summary.burstiness is None else f", burstiness {summary.burstiness:,.4g}"
    return [
        f"rate               {summary.rate:,.4g} requests/s",
        f"inter-arrival CV   {summary.interarrival_cv:.2f} (1 is a Poisson process){burstiness}",
        f"arrivals in 1 s    variance {summary.dispersion_1s:.2f} times the mean",
        f"idle gaps          {summary.num_idle_gaps:,} of at least {IDLE_GAP_S} s,"
        f" {summary.idle_s:,.1f} s in all; longest gap {summary.longest_gap_s:,.3f} s",
    ]


def _session_lines(summary: TraceSummary) -> list[str]:
    sessions = summary.sessions
    assert sessions is not None, f"{summary.name} has no sessions"
    think = (
        "not known"
        if sessions.mean_think_s is None
        else f"mean {sessions.mean_think_s:,.2f} s, known for {sessions.num_think_times:,} calls"
    )
    return [
        f"sessions           {sessions.num_sessions:,} of {sessions.num_calls:,} requests:"
        f" mean {sessions.mean_calls:,.1f}, most {sessions.max_calls:,}",
        f"forks and joins    {sessions.num_forks:,} and {sessions.num_joins:,}",
        f"think or tool time {think}",
    ]


def _hit_lines(hits: PrefixHits) -> list[str]:
    return [
        f"prefix hits        {hits.token_share:.4f} of tokens"
        f" ({hits.num_hit_tokens:,} of {hits.num_tokens:,}), {hits.block_share:.4f} of blocks"
        f" ({hits.num_hit_blocks:,} of {hits.num_blocks:,}) of {_tokens(hits.block_tokens)}",
        f"  {hits.blocks}",
    ]


def _tokens(num: int) -> str:
    return "1 token" if num == 1 else f"{num:,} tokens"


def _length_line(title: str, lengths: LengthSummary) -> str:
    return (
        f"{title:<19}mean {lengths.mean:,.1f}  p50 {lengths.p50:,.0f}  p90 {lengths.p90:,.0f}"
        f"  p99 {lengths.p99:,.0f}  max {lengths.max:,}"
    )


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} x {what}" for what, number in counts.items()) or "none"


def _key_counts(counts: Mapping[str, int]) -> str:
    """Keys are whatever stands in the file: any text, and any number of them."""
    first = [f"{number:,} x {shown(key)}" for key, number in islice(counts.items(), _MOST_KEYS)]
    num_more = len(counts) - len(first)
    return ", ".join([*first, f"and {num_more:,} more"] if num_more else first)
