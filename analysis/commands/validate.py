"""`kvtwin validate`: does a device do what was simulated?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..device_flags import DeviceFlags
from ..options import ForceOption, Inputs, JsonOption, OutOption, takes_inputs_and

if TYPE_CHECKING:
    from kvtwin.gpu.twin.validation import PolicyValidation


def _depth(help_text: str) -> Any:
    return typer.Option(help=help_text, metavar="N", min=1, rich_help_panel="Execution")


@takes_inputs_and(DeviceFlags)
def validate(
    inputs: Inputs,
    flags: DeviceFlags,
    policies: Annotated[
        str, typer.Option(help="Policies, see kvtwin policies.", metavar="A,B,...")
    ] = "paged",
    out: OutOption = Path("out/validate"),
    audit_steps: Annotated[int, _depth("Classify every slot in each N-th step.")] = 10,
    output_steps: Annotated[int, _depth("Compare one more output in each N-th step.")] = 4,
    output_rows: Annotated[int, _depth("Requests whose outputs are all compared.")] = 8,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Execute on real tensors what was simulated, and compare.

    Exit code 1 if a prediction fails. What is predicted is written and hashed before anything is
    executed: decisions with all ids, what every slot holds, the parts of the pool, attention
    outputs, times.
    """
    from ..device_flags import opened_backend
    from ..output_dir import check_output_dir, replacing
    from ..policy_names import parse_policies
    from ..printing import print_json
    from ..setting import load_config, load_trace

    names = parse_policies(policies)
    config, notes = load_config(inputs, policy=None)
    check_output_dir(out, force=force)
    with opened_backend(flags) as backend, replacing(out, force=force) as staging:
        from kvtwin.gpu.twin.validate import Depth

        from ..prediction_table import print_predictions
        from ..validating import validate_policies

        def show(part: "PolicyValidation") -> None:
            if not as_json:
                print_predictions(part)

        trace = load_trace(inputs, config.seed)
        validation = validate_policies(
            trace,
            config,
            names,
            flags,
            backend,
            Depth(audit_steps, output_steps, output_rows),
            staging,
            notes=notes,
            paranoid=inputs.paranoid,
            each=show,
        )
        from ..validation import write_validation_report

        write_validation_report(staging)
    if as_json:
        print_json(validation.to_dict())
    else:
        from ..validation_cells import verdict

        print("\n".join(f"Note: {note}" for note in validation.notes))
        print(f"Report: {out / 'report.html'}")
        print(verdict(validation.to_dict()))
    if not validation.passed:
        raise typer.Exit(1)
