"""ServeGen client models: requests are drawn from a client's rates and distributions with a seed.

Source: github.com/alibaba/ServeGen, data/. A client is two files. `*-trace.csv` has no header:
start of a 600 s window (s), requests per second in it, CV and distribution of the gaps (Gamma,
Weibull, or none where the client is silent), its shape and its scale. `*-dataset.json` gives, for
each 6 hours, probabilities of input and of output tokens. Name either file, or a folder of pairs.

A window gets its rate x 600 s requests (rounded): gaps of the window's shape, one more than
requests, are stretched together to fill it. Lengths are drawn independently of each other.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..arrays import Int64
from ..errors import UserError
from ..trace import UNKNOWN_MAX_TOKENS, TraceChunk
from .checks import MAX_SPAN_S, fail_at, shown
from .json_documents import load_document
from .servegen_lengths import lengths_at, read_lengths
from .source import Head, Source, read_head

SHAPE = "header-less CSV of window, rate, CV, Gamma or Weibull, shape, scale, with its dataset JSON"
MAX_REQUESTS = 50_000_000
_TRACE, _DATASET = "-trace.csv", "-dataset.json"
_WINDOW_S = 600
_NUMBER = r"([0-9]{1,30}(?:\.[0-9]{0,30})?(?:[eE][-+]?[0-9]{1,3})?)"
_LINE = re.compile(rf"{_NUMBER},{_NUMBER},{_NUMBER},(Gamma|Weibull|),{_NUMBER},{_NUMBER}")
_NO_LENGTHS = "request in a window without lengths"
_DATASET_KEYS = re.compile(rb'\{\s*"[0-9]+"\s*:\s*\{\s*"(?:input|output)_tokens"\s*:\s*"\{')


class _Window(NamedTuple):
    start_s: int
    num_requests: int
    distribution: str
    shape: float


def recognises(head: Head) -> bool:
    if head.is_folder:
        return any(_is_trace(read_head(path)) for path in _traces(head.path))
    return _is_trace(head) or _DATASET_KEYS.match(head.data) is not None


def read(source: Source) -> Iterator[TraceChunk]:
    if source.options.seed < 0:
        raise UserError(f"seed is {source.options.seed}; it must be at least 0")
    traces = _traces(source.path) if source.head.is_folder else [_sibling(source.path, _TRACE)]
    parts = [_draw(path, source) for path in traces]
    arrival_ns, prompts, outputs = (np.concatenate(column) for column in zip(*parts, strict=True))
    if not len(arrival_ns):
        return
    source.notes.append(
        f"requests are drawn with seed {source.options.seed}, their two lengths independently"
    )
    order = np.argsort(arrival_ns, kind="stable")
    yield TraceChunk(
        arrival_ns=arrival_ns[order] - arrival_ns[order[0]],
        num_prompt_tokens=prompts[order],
        num_output_tokens=outputs[order],
        max_tokens=np.full(len(order), UNKNOWN_MAX_TOKENS, dtype=np.int64),
    )


def _draw(path: Path, source: Source) -> tuple[Int64, Int64, Int64]:
    """Arrivals in ns, prompt and output tokens of one client, in order of arrival."""
    trace, dataset = (
        Source(read_head(file), source.options, source.skipped, source.unknown_keys, source.notes)
        for file in (path, _sibling(path, _DATASET))
    )
    table = read_lengths(load_document(dataset), source.unknown_keys)
    # What a client does depends on its name and the seed, not on the clients before it.
    rng = np.random.default_rng([source.options.seed, *path.name.encode()])
    parts: list[tuple[Int64, ...]] = [(np.empty(0, dtype=np.int64),) * 3]
    for window in _windows(trace):
        lengths = lengths_at(table, window.start_s)
        if lengths is None:
            source.skipped[_NO_LENGTHS] += window.num_requests
            continue
        parts.append(
            (_arrivals(window, rng), *(of.draw(window.num_requests, rng) for of in lengths))
        )
    arrivals, prompts, outputs = (np.concatenate(column) for column in zip(*parts, strict=True))
    return arrivals, prompts, outputs


def _windows(trace: Source) -> Iterator[_Window]:
    """The windows with requests, in order."""
    end_s = num_requests = 0
    for line, text in trace.lines():
        match = _LINE.fullmatch(text.strip().decode(errors="replace"))
        if not match:
            fail_at(
                trace.place(line),
                f"{shown(text.decode(errors='replace'))} is not start, rate, CV, Gamma or Weibull"
                " or nothing, shape, scale",
            )
        start, rate, _, distribution, shape, _ = match.groups()
        start_s = float(start)
        if start_s % _WINDOW_S or not end_s <= start_s <= MAX_SPAN_S:
            fail_at(
                trace.place(line),
                f"window start is {shown(start)}; it must be a multiple of {_WINDOW_S} s, behind the"
                f" line before, up to {MAX_SPAN_S:,}",
            )
        end_s = int(start_s) + _WINDOW_S
        expected = float(rate) * _WINDOW_S
        if expected > MAX_REQUESTS or num_requests > MAX_REQUESTS:
            fail_at(
                trace.place(line),
                f"rate is {shown(rate)}; a client has at most {MAX_REQUESTS:,} requests in all",
            )
        window = _Window(int(start_s), round(expected), distribution, float(shape))
        num_requests += window.num_requests
        if window.num_requests and not (distribution and window.shape > 0):
            fail_at(
                trace.place(line), f"rate is {shown(rate)} but there is no distribution of gaps"
            )
        if window.num_requests:
            yield window


def _arrivals(window: _Window, rng: np.random.Generator) -> Int64:
    draw = rng.gamma if window.distribution == "Gamma" else rng.weibull
    # The scale cancels: the gaps, with one behind the last request, fill the window.
    ends = np.cumsum(draw(window.shape, size=window.num_requests + 1))
    within = ends[:-1] / ends[-1] if ends[-1] > 0 else np.zeros(window.num_requests)
    times_ns: Int64 = window.start_s * 10**9 + np.rint(within * _WINDOW_S * 1e9).astype(np.int64)
    return times_ns


def _traces(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f"*{_TRACE}*") if path.is_file())


def _is_trace(head: Head) -> bool:
    return _LINE.fullmatch(head.first_line.decode(errors="replace")) is not None


def _sibling(path: Path, ending: str) -> Path:
    """The file of the pair whose name ends with `ending`."""
    for own in (_TRACE, _DATASET):
        if own in path.name:
            sibling = path.with_name(path.name.replace(own, ending))
            if not sibling.is_file():
                raise UserError(
                    f"{path} needs {sibling.name} beside it, which is not there; copy it"
                )
            return sibling
    raise UserError(
        f"{path} is one file of a ServeGen client; name the pair *{_TRACE} and *{_DATASET}"
    )
