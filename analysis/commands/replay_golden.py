"""`kvtwin replay-golden`: a recorded run of vLLM's scheduler, again."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

_MOST_CHARACTERS = 200


def replay_golden(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Folder of a recorded run: config.json, trace.jsonl, steps.jsonl."
        ),
    ],
) -> None:
    """Run the recorded requests through the policy vllm-v1 and compare every field of every step.

    Prints how many rows were compared, and the first difference. Exit code 1 on a difference.
    """
    from kvtwin.sim.vllm_v1.recording import read_recording
    from kvtwin.sim.vllm_v1.replay import Replay, readings

    recording = read_recording(folder)
    outcomes = []
    for reading in readings(recording):
        num_rows, difference = _compare(Replay(recording, reading).rows(), recording.rows())
        if not difference:
            print(f"{folder}: {num_rows} rows compared, all equal")
            return
        outcomes.append((num_rows, difference))
    # By whichever reading of the format comes furthest.
    num_rows, difference = max(outcomes, key=lambda outcome: outcome[0])
    print(f"{folder}: {num_rows} rows compared, {difference}")
    raise typer.Exit(1)


Row = dict[str, Any]


def _compare(replayed: Iterator[Row], recorded_rows: Iterator[tuple[int, Row]]) -> tuple[int, str]:
    """Rows compared, and the first difference in words; empty: none."""
    num_rows = 0
    for line, recorded in recorded_rows:
        row = next(replayed, {})
        num_rows += 1
        if row != recorded or _order(row) != _order(recorded):
            lines = [f"the last one differs (line {line})"]
            for name in [*recorded, *(name for name in row if name not in recorded)]:
                if row.get(name) != recorded.get(name) or (
                    name == "tables" and _order(row) != _order(recorded)
                ):
                    lines.append(f"  {name}: recorded {_text(recorded, name)}")
                    lines.append(f"  {' ' * len(name)}  replayed {_text(row, name)}")
            return num_rows, "\n".join(lines)
    if (row := next(replayed, {})) != {}:
        return num_rows, f"and step {row['step']} is not among them"
    return num_rows, ""


def _order(row: Row) -> list[str]:
    """Of the running requests, as the tables have it."""
    return list(row.get("tables", ()))


def _text(row: dict[str, Any], name: str) -> str:
    if name not in row:
        return "nothing"
    text = json.dumps(row[name], separators=(",", ":"))
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "..."
