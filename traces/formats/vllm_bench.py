"""Results of `vllm bench serve --save-result --save-detailed`: one JSON object with a list each.

Source: github.com/vllm-project/vllm, vllm/benchmarks/serve.py. Entry i of `input_lens`,
`output_lens`, `start_times` and `errors` is of request i. A request arrives when it was sent:
`start_times` are seconds of some clock. Versions before them recorded no arrivals; then all
requests arrive at once. A request with an error or without output tokens failed and is left out.
"""

from collections.abc import Iterator

from ..sessions import NONE
from ..trace import TraceChunk
from .calls import Call, chunk_of_calls
from .json_documents import load_document
from .json_head import head_keys
from .json_value import JsonValue
from .source import Head, Source

SHAPE = "JSON with input_lens, output_lens"
_REQUIRED = ("input_lens", "output_lens")
_OPTIONAL = ("start_times", "errors")
_S = 10**9
_FAILED = "failed request"
_NO_ARRIVALS = "the file has no start_times: all requests arrive at once"


def recognises(head: Head) -> bool:
    return set(_REQUIRED) <= head_keys(head)


def read(source: Source) -> Iterator[TraceChunk]:
    document = load_document(source)
    columns = {key: list(document[key].items()) for key in _REQUIRED}
    columns |= {
        key: list(given.items()) for key in _OPTIONAL if (given := document.get(key)) is not None
    }
    num_requests = len(columns["input_lens"])
    for key, values in columns.items():
        if len(values) != num_requests:
            document[key].fail(f"has {len(values)} entries; input_lens has {num_requests}")
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


def _is_error(error: JsonValue) -> bool:
    return error.value is not None and error.text() != ""
