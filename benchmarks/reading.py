"""How fast large traces are read, and in how much memory.

Two files are generated in a temporary folder and removed: a CSV shaped like the Azure trace of a week
in 2024 (`--rows`, read as `kvtwin trace info` does), and a JSONL shaped like Mooncake's (`--requests`
of 20 block ids on average that make about 20 pieces each, loaded as a whole). Each is measured in a
process of its own, after a calibration loop: on a busy machine wall time says little, CPU time more.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from calibration import loop_seconds
from machine import machine_lines

from kvtwin.traces import describe_file, open_trace

WEEK_US = 7 * 86_400 * 10**6
MOONCAKE_BLOCKS = 39  # at most; 20 on average


def write_azure(path: Path, num_rows: int) -> None:
    """Rows over a week with stamps like `2024-05-10 00:00:00.009930+00:00`."""
    rng, at_us = np.random.default_rng(1), 0
    start = np.datetime64("2024-05-10T00:00:00", "us")
    with path.open("w") as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for left in range(num_rows, 0, -200_000):
            num = min(left, 200_000)
            times_us = at_us + np.cumsum(rng.integers(0, max(2 * WEEK_US // num_rows, 1), num))
            at_us = int(times_us[-1])
            stamps = np.datetime_as_string(start + times_us.astype("timedelta64[us]"))
            prompts, outputs = rng.integers(1, 7500, num), rng.integers(1, 600, num)
            columns = (stamps.tolist(), prompts.tolist(), outputs.tolist())
            file.write(
                "".join(
                    f"{s.replace('T', ' ')}+00:00,{p},{o}\n"
                    for s, p, o in zip(*columns, strict=True)
                )
            )


def write_mooncake(path: Path, num_requests: int) -> None:
    """Prompts of block ids of 64 bits without an order, so that every id is a piece of its own."""
    rng, at_ms = np.random.default_rng(1), 0
    with path.open("w") as file:
        for _ in range(num_requests):
            num_blocks = int(rng.integers(1, MOONCAKE_BLOCKS + 1))
            at_ms += int(rng.integers(0, 600))
            row = {
                "timestamp": at_ms,
                "input_length": 512 * num_blocks - int(rng.integers(0, 512)),
                "output_length": int(rng.integers(1, 900)),
                "hash_ids": rng.integers(0, 2**63, num_blocks).tolist(),
            }
            file.write(json.dumps(row) + "\n")


def measure(kind: str, path: Path) -> dict[str, float]:
    """Read one file in this process."""
    loop_s = loop_seconds()
    started, cpu_started = time.perf_counter(), time.process_time()
    if kind == "azure":
        num_rows = describe_file(path).num_requests
        num_pieces = 0
    else:
        trace = open_trace(path)
        num_rows = trace.num_requests
        num_pieces = sum(len(c.content.streams) for c in trace.chunks if c.content is not None)
    return {
        "rows": num_rows,
        "pieces": num_pieces,
        "wall_s": time.perf_counter() - started,
        "cpu_s": time.process_time() - cpu_started,
        "loop_s": loop_s,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000, help="of the CSV (0: none)")
    parser.add_argument("--requests", type=int, default=100_000, help="of the JSONL (0: none)")
    parser.add_argument("--measure", nargs=2, metavar=("KIND", "PATH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure[0], Path(arguments.measure[1]))))
        return
    print("\n".join(machine_lines()))
    with tempfile.TemporaryDirectory() as folder:
        for kind, num, write in (
            ("azure", arguments.rows, write_azure),
            ("mooncake", arguments.requests, write_mooncake),
        ):
            if not num:
                continue
            path = Path(folder) / f"{kind}.trace"
            write(path, num)
            command = [sys.executable, __file__, "--measure", kind, str(path)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found = json.loads(output)
            print(
                f"{kind}: {found['rows']:,} rows, {found['pieces']:,} pieces,"
                f" {path.stat().st_size / 1e9:.2f} GB: {found['wall_s']:.1f} s wall,"
                f" {found['cpu_s']:.1f} s CPU; {found['rows'] / found['wall_s']:,.0f} rows/s of wall,"
                f" {found['rows'] / found['cpu_s']:,.0f} of CPU; peak {found['peak_gb']:.2f} GB;"
                f" calibration loop {found['loop_s']:.3f} s"
            )
            path.unlink()


if __name__ == "__main__":
    main()
