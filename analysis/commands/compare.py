"""`kvtwin compare`: several policies on one trace, side by side."""

from pathlib import Path
from typing import Annotated

import typer

from ..options import ForceOption, Inputs, JsonOption, OutOption, takes_inputs

DEFAULT_POLICIES = "static,orca-max,orca-pow2,orca-oracle,contiguous,paged"


@takes_inputs
def compare(
    inputs: Inputs,
    policies: Annotated[
        str, typer.Option(help="Policies, see kvtwin policies.", metavar="A,B,...")
    ] = DEFAULT_POLICIES,
    out: OutOption = Path("out/compare"),
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run policies on one trace; write a report, figures and a run directory each.

    Without a trace, model or GPU: OPT-13B on an A100 of 40 GB with 12 GiB of KV cache (983 blocks
    of 16 slots) and 2,000 generated requests that all arrive at once.
    """
    from ..comparison import compare_policies, parse_policies
    from ..layout import REPORT_HTML
    from ..metrics import notices
    from ..output_dir import check_output_dir, replacing
    from ..printing import print_json
    from ..report import write_report
    from ..setting import load_config, load_trace
    from ..table import print_comparison

    names = parse_policies(policies)
    config = load_config(inputs, policy=None)
    check_output_dir(out, force=force)
    trace = load_trace(inputs, config.seed)
    with replacing(out, force=force) as staging:
        result = compare_policies(trace, config, names, staging, paranoid=inputs.paranoid)
        write_report(result, staging)
    if as_json:
        print_json(result)
        return
    print_comparison(
        result["policies"],
        notices(result),
        result["verdict"],
        str(out / REPORT_HTML),
    )
