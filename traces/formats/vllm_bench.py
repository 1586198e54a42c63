"""Results of `vllm bench serve --save-result --save-detailed`: one JSON object with a list each.

Source: github.com/vllm-project/vllm, vllm/benchmarks/serve.py. Entry i of `input_lens`,
`output_lens`, `start_times` and `errors` is of request i. A request arrives when it was sent:
`start_times` are seconds of some clock. Versions before them recorded no arrivals; then all
requests arrive at once. A request with an error or without output tokens failed and is left out.
`ttfts` and `itls` (seconds) say when the client got each piece of an answer, which usually is a token.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..arrays import Int64
from ..errors import UserError
from ..sessions import NONE
from ..trace import TraceChunk
from .calls import Call, chunk_of_calls
from .json_documents import load_document
from .json_head import head_keys
from .json_value import JsonValue
from .source import Head, Source, read_head

SHAPE = "JSON with input_lens, output_lens"
_REQUIRED = ("input_lens", "output_lens")
_OPTIONAL = ("start_times", "errors")
_S = 10**9
_FAILED = "failed request"
_NO_ARRIVALS = "the file has no start_times: all requests arrive at once"


def recognises(head: Head) -> bool:
    return set(_REQUIRED) <= head_keys(head)


def read(source: Source) -> Iterator[TraceChunk]:
    columns = _columns(load_document(source), _REQUIRED, _OPTIONAL)
    starts, errors = columns.get("start_times"), columns.get("errors")
    calls: list[Call] = []
    for i, (prompt, output) in enumerate(zip(*(columns[key] for key in _REQUIRED), strict=True)):
        if output.tokens(least=0) == 0 or (errors and _is_error(errors[i])):
            source.skipped[_FAILED] += 1
            continue
        start_ns = starts[i].ns(_S, "seconds") if starts else 0
        calls.append(Call(NONE, start_ns, prompt.tokens(), output.tokens()))
    if not starts:
        source.notes.append(_NO_ARRIVALS)
    yield from chunk_of_calls(source.path, calls)


@dataclass(frozen=True)
class BenchRequest:
    """One request that was answered, as its client saw it. Times in ns, all of one clock.

    `piece_ns`: when each piece of the answer came, ascending; the first holds the first token.
    """

    start_ns: int
    num_prompt_tokens: int
    num_output_tokens: int
    piece_ns: Int64


def read_bench_requests(path: Path) -> tuple[list[BenchRequest], Counter[str]]:
    """What the file says of each request, in the file's order; and how many are left out, by reason.

    Raises UserError where it is no result of --save-detailed with arrivals, or not a good one.
    """
    source = Source(read_head(path))
    document = load_document(source)
    for key, remedy in (
        ("itls", "measure with --save-detailed"),
        ("start_times", "measure with a vLLM that records when it sent each request"),
    ):
        if document.get(key) is None:
            raise UserError(f"{path} has no {key}, which say when tokens came; {remedy}")
    columns = _columns(document, (*_REQUIRED, "ttfts", "itls", "start_times"), ("errors",))
    requests = []
    for i, output in enumerate(columns["output_lens"]):
        num_output_tokens = output.tokens(least=0)
        if num_output_tokens == 0 or ("errors" in columns and _is_error(columns["errors"][i])):
            source.skipped[_FAILED] += 1
            continue
        start_ns = columns["start_times"][i].ns(_S, "seconds")
        gaps = [columns["ttfts"][i], *columns["itls"][i].items()]
        piece_ns = start_ns + np.cumsum([gap.ns(_S, "seconds") for gap in gaps], dtype=np.int64)
        num_prompt_tokens = columns["input_lens"][i].tokens()
        requests.append(BenchRequest(start_ns, num_prompt_tokens, num_output_tokens, piece_ns))
    return requests, source.skipped


def _columns(
    document: JsonValue, required: tuple[str, ...], optional: tuple[str, ...]
) -> dict[str, list[JsonValue]]:
    """The lists of these names, each with an entry for every request."""
    columns = {key: list(document[key].items()) for key in required}
    columns |= {
        key: list(given.items()) for key in optional if (given := document.get(key)) is not None
    }
    num_requests = len(columns["input_lens"])
    for key, values in columns.items():
        if len(values) != num_requests:
            document[key].fail(f"has {len(values)} entries; input_lens has {num_requests}")
    return columns


def _is_error(error: JsonValue) -> bool:
    return error.value is not None and error.text() != ""
