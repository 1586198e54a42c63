"""Azure LLM inference traces: `TIMESTAMP,ContextTokens,GeneratedTokens`.

Source: github.com/Azure/AzurePublicDataset. Stamps of 2023 have seven fraction digits (100 ns) and
no zone, those of the week of 2024 six digits, or none at all, and `+00:00`. The multimodal trace of
2025 has milliseconds, `Z`, and `NumImages`, which is not used: the tokens of images are in
ContextTokens or nowhere. There are no failed rows.
"""

from collections.abc import Iterator

import numpy as np

from ..trace import UNKNOWN_MAX_TOKENS, TraceChunk
from .source import Head, Source
from .table import csv_tables
from .times import DateClock

SHAPE = "CSV with TIMESTAMP, ContextTokens, GeneratedTokens"
_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def recognises(head: Head) -> bool:
    return head.columns >= set(_COLUMNS)


def read(source: Source) -> Iterator[TraceChunk]:
    clock = DateClock("TIMESTAMP")
    for table in csv_tables(source, _COLUMNS, known=("NumImages",), counts=_COLUMNS[1:]):
        yield TraceChunk(
            arrival_ns=clock.arrivals(table),
            num_prompt_tokens=table.token_counts("ContextTokens"),
            num_output_tokens=table.token_counts("GeneratedTokens"),
            max_tokens=np.full(table.num_rows, UNKNOWN_MAX_TOKENS, dtype=np.int64),
        )
