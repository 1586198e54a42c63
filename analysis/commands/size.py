"""`kvtwin size`: will it fit, and where did the memory go."""

import sys

import typer

from ..options import JsonOption, takes_flags_of
from ..sizing.options import SizeInputs


@takes_flags_of(SizeInputs)
def size(inputs: SizeInputs, as_json: JsonOption = False) -> None:
    """Say how much KV memory fits, and where the rest went.

    Needs no trace and no GPU; every word is explained in docs/sizing.md. The exit code is 2 where the
    engine would not start.
    """
    from kvtwin.sim.sizing.engine_log import read_engine_log

    from ..printing import print_json
    from ..sizing.answer import answer
    from ..sizing.setting import load_setting
    from ..sizing.text import print_answer, verdict

    log = None if inputs.engine_log is None else read_engine_log(inputs.engine_log)
    facts = answer(inputs, load_setting(inputs, log), log)
    if as_json:
        print_json({**facts, "verdict": verdict(facts)})
    else:
        print_answer(facts)
    if not facts["starts"]:
        if sys.stdout is not None:  # it may be closed
            sys.stdout.flush()
        print(f"kvtwin: {verdict(facts)}", file=sys.stderr)
        raise typer.Exit(2)
