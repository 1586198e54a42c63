"""Write the first requests of a trace whose prompts are short enough to be executed on a CPU.

    .venv/bin/python benchmarks/short_prompts.py TRACE OUT.csv

Prompts of at most 256 tokens, 200 of them, with the arrivals and outputs that they have.
"""

import argparse
from pathlib import Path

import numpy as np

from kvtwin.traces import open_trace, write_trace


def main() -> None:
    parser = argparse.ArgumentParser(description="The first requests with short prompts.")
    parser.add_argument("trace", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--longest-prompt", type=int, default=256)
    parser.add_argument("--num-requests", type=int, default=200)
    options = parser.parse_args()
    trace = open_trace(options.trace)
    lengths = np.concatenate([chunk.num_prompt_tokens for chunk in trace.chunks])
    rows = np.flatnonzero(lengths <= options.longest_prompt)
    print(
        f"{len(rows):,} of {len(lengths):,} prompts have {options.longest_prompt} tokens or fewer"
    )
    write_trace(trace.take(rows[: options.num_requests]), options.out, "kvtwin-csv")


if __name__ == "__main__":
    main()
