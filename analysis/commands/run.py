"""`kvtwin run`: one policy, one run directory."""

from pathlib import Path
from typing import Annotated

import typer

from ..device_flags import DeviceFlags
from ..options import ForceOption, Inputs, JsonOption, OutOption, takes_inputs_and


@takes_inputs_and(DeviceFlags)
def run(
    inputs: Inputs,
    flags: DeviceFlags,
    policy: Annotated[
        str | None,
        typer.Option(help="One policy, see kvtwin policies (default paged).", metavar="NAME"),
    ] = None,
    out: OutOption = Path("out/run"),
    snapshots: Annotated[
        bool, typer.Option("--snapshots", help="Record who holds which slots over time.")
    ] = False,
    decisions: Annotated[
        bool, typer.Option("--decisions", help="Record every grant, extension, move and free.")
    ] = False,
    real_time: Annotated[
        bool,
        typer.Option(
            "--real-time",
            help="With --device: wait for arrivals, and count all that happens between steps.",
            rich_help_panel="Execution",
        ),
    ] = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run one policy on a trace and write a run directory.

    With --device it is executed on real tensors, and steps last as long as they are measured to.
    """
    from kvtwin.sim import simulate
    from kvtwin.traces import UserError

    from ..definitions import latency_note
    from ..facts import gather_facts, header_lines
    from ..no_pandas import without_pandas
    from ..notices import notices
    from ..output_dir import check_output_dir, replacing
    from ..policy_names import check_policy
    from ..printing import print_json
    from ..run_block import run_lines
    from ..setting import load_config, load_trace
    from ..swaps import swap_notes
    from ..verdict import run_verdict
    from ..waiting import held_by

    if flags.device is None and (real_time or flags != DeviceFlags()):
        raise UserError(
            "flags of an execution are given without --device; give it, or leave them out"
        )
    without_pandas()
    if policy is not None:
        check_policy(policy)
    config, notes = load_config(inputs, policy=policy)
    check_output_dir(out, force=force)
    trace = load_trace(inputs, config.seed)
    with replacing(out, force=force) as staging:
        if flags.device is None:
            summary = simulate(
                trace,
                config,
                staging,
                snapshots=snapshots,
                decisions=decisions,
                paranoid=inputs.paranoid,
            )
        else:
            from ..execution import execute_run

            summary = execute_run(
                trace, config, flags, staging, real_time=real_time, paranoid=inputs.paranoid
            )
    facts = gather_facts(config, trace, notes=[*notes, *swap_notes(config, [summary])])
    if flags.device is not None:
        from ..execution import executed_facts

        facts = executed_facts(facts, config, summary)
    if as_json:
        note = latency_note(calibrated=summary["calibrated"], saturated=facts["trace"]["saturated"])
        print_json({**facts, "latency_note": note, "summary": summary})
        return
    found = notices({**facts, "policies": [summary]})
    lines = [
        *header_lines(facts),
        *run_lines(summary),
        *(f"{notice.kind}: {notice.text}" for notice in found if notice.serious),
        *(f"Note: {note}" for note in facts["notes"]),
        f"Run directory: {out}",
    ]
    print("\n".join(lines))
    if held := held_by([summary]):
        print(held)
    print(run_verdict(summary))
