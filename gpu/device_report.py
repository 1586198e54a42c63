"""A report in Markdown of what `device_run.py` wrote: `python -m kvtwin.gpu.device_report RUN.jsonl`."""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .bench import BenchRow
from .check import Result
from .report import (
    BENCH_HEADER,
    CHECK_HEADER,
    VALIDATION_HEADER,
    bench_line,
    calibration_lines,
    check_line,
    check_summary,
    validation_failures,
    validation_line,
)
from .twin.validation import PolicyValidation

CUT_OFF = "The time was over before the rest of the {what} could run."
UNFINISHED = "The {what} did not come to their end."
USAGE = "usage: python -m kvtwin.gpu.device_report RUN.jsonl"


def render(lines: Iterable[dict[str, Any]]) -> Iterator[str]:
    """The machine, the timings, the checks, and what is missing, as lines of Markdown."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        by_kind.setdefault(line["kind"], []).append(line)
    for machine in by_kind.get("machine", []):
        yield f"# Kernels and twin on {machine.get('gpu', 'a CPU')}"
        yield ""
        if machine["dry_run"]:
            yield "A dry run: nothing here was measured on a GPU. Step times are those of a CPU."
        facts = {key: value for key, value in machine.items() if key not in ("kind", "at_s")}
        yield ", ".join(f"{name} {value}" for name, value in facts.items()) + "."
    for error in by_kind.get("error", []):
        yield f"\nFAILED: {error['message']}"
    rows = [BenchRow.from_dict(line) for line in by_kind.get("bench", [])]
    if rows:
        yield f"\n## Timings\n\n{BENCH_HEADER}"
        yield from map(bench_line, rows)
    for line in by_kind.get("calibrated", []):
        yield f"\n## Calibration, blocks of {line['block_size']}\n"
        yield f"{line['num_steps']} of {line['of']} steps were measured.\n"
        if line["cost"] is not None:
            yield from calibration_lines(line["cost"])
    validated = [
        (line["trace"], PolicyValidation.from_dict(line)) for line in by_kind.get("validated", [])
    ]
    if validated:
        yield f"\n## Validation\n\n{VALIDATION_HEADER}"
        yield from (validation_line(*one) for one in validated)
        yield ""
        for one in validated:
            yield from validation_failures(*one)
    results = [Result.from_dict(line) for line in by_kind.get("check", [])]
    if results:
        yield f"\n## Checks\n\n{check_summary(results)}\n\n{CHECK_HEADER}"
        yield from map(check_line, results)
    for kind, what in (
        ("benched", "timings"),
        ("all_validated", "validations"),
        ("checked", "checks"),
    ):
        if kind not in by_kind:
            yield f"\n{UNFINISHED.format(what=what)}"
        elif not all(line["complete"] for line in by_kind[kind]):
            yield f"\n{CUT_OFF.format(what=what)}"
    if "end" not in by_kind:
        yield "\nThe run did not come to its end."


def read_lines(text: str) -> list[dict[str, Any]]:
    """What a run wrote, less a last line that it was cut off in. Raises ValueError, one line."""
    lines: list[dict[str, Any]] = []
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if not line.endswith("\n"):
            break
        try:
            content = json.loads(line)
        except ValueError as error:
            raise ValueError(f"line {number} is no JSON ({error})") from None
        if not isinstance(content, dict) or "kind" not in content:
            raise ValueError(f"line {number} is no object with a kind")
        lines.append(content)
    return lines


def main(arguments: list[str]) -> int:
    """Print the report of the file named; return 2, after one line, where there is none to read."""
    if len(arguments) != 1:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        report = list(render(read_lines(Path(arguments[0]).read_text(encoding="utf-8"))))
    except OSError as error:
        print(f"{arguments[0]}: {error.strerror}; {USAGE}", file=sys.stderr)
        return 2
    except (ValueError, KeyError, TypeError) as error:  # of what a line lacks, or has too much
        print(f"{arguments[0]}: not written by device_run.py: {error}; {USAGE}", file=sys.stderr)
        return 2
    for line in report:
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
