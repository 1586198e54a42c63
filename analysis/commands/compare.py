"""`kvtwin compare`: several policies on one trace, side by side."""

from pathlib import Path
from typing import Annotated

import typer

from ..options import ForceOption, Inputs, JsonOption, OutOption, takes_inputs

# Of the paper's figures, and of what one would serve a trace with.
GENERATED_POLICIES = "static,orca-max,orca-pow2,orca-oracle,contiguous,paged"
TRACE_POLICIES = "static,orca-max,paged,vllm-v1-no-caching,vllm-v1"


@takes_inputs
def compare(
    inputs: Inputs,
    policies: Annotated[
        str | None,
        typer.Option(
            help=f"Policies, see kvtwin policies (default {TRACE_POLICIES} for a TRACE, else "
            f"{GENERATED_POLICIES}).",
            metavar="A,B,...",
            show_default=False,
        ),
    ] = None,
    out: OutOption = Path("out/compare"),
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run several policies on one trace and write a report.

    Figures and a run directory for each policy are written beside it.
    """
    from ..comparison import compare_policies
    from ..layout import REPORT_HTML
    from ..notices import notices
    from ..output_dir import check_output_dir, replacing
    from ..policy_names import parse_policies
    from ..printing import print_json
    from ..setting import load_config, load_trace
    from ..table import print_comparison

    default = GENERATED_POLICIES if inputs.trace is None else TRACE_POLICIES
    names = parse_policies(policies or default)
    config, notes = load_config(inputs, policy=None)
    check_output_dir(out, force=force)
    trace = load_trace(inputs, config.seed)
    with replacing(out, force=force) as staging:
        result = compare_policies(
            trace, config, names, staging, notes=notes, paranoid=inputs.paranoid
        )
        from ..report import write_report  # loaded by now, while the policies ran

        write_report(result, staging)
    if as_json:
        print_json(result)
        return
    print_comparison(result, notices(result), str(out / REPORT_HTML))
