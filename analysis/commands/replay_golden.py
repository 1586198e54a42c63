"""`kvtwin replay-golden`: a recorded run of vLLM's scheduler, again."""

import json
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
    from kvtwin.sim.vllm_v1.replay import Replay

    recording = read_recording(folder)
    replayed = Replay(recording).rows()
    num_rows = 0
    for line, recorded in recording.rows():
        row = next(replayed, {})
        num_rows += 1
        if row != recorded:
            print(f"{folder}: {num_rows} rows compared, the last one differs (line {line})")
            for name in [*recorded, *(name for name in row if name not in recorded)]:
                if row.get(name) != recorded.get(name):
                    print(f"  {name}: recorded {_text(recorded, name)}")
                    print(f"  {' ' * len(name)}  replayed {_text(row, name)}")
            raise typer.Exit(1)
    if (row := next(replayed, {})) != {}:
        print(f"{folder}: {num_rows} rows compared, and step {row['step']} is not among them")
        raise typer.Exit(1)
    print(f"{folder}: {num_rows} rows compared, all equal")


def _text(row: dict[str, Any], name: str) -> str:
    if name not in row:
        return "nothing"
    text = json.dumps(row[name], separators=(",", ":"))
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "..."
