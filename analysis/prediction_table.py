"""The predictions of a validation at a terminal: a table a policy, as soon as it has been executed."""

from typing import TYPE_CHECKING

from .table import plain_console, plain_table, say
from .validation_cells import number_cell, outcome

if TYPE_CHECKING:
    from kvtwin.gpu.twin.validation import PolicyValidation


def print_predictions(policy: "PolicyValidation") -> None:
    """A row for each prediction under the policy's name and backend, then a line for each finding."""
    console = plain_console()
    title = f"{policy.policy}, executed with {policy.backend}"
    table = plain_table(title, "prediction")
    # Names are sentences, and the only cells that may be broken.
    table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
    for heading in ("predicted", "measured", "tolerance"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("unit", "verdict"):
        table.add_column(heading, no_wrap=True)
    for prediction in policy.predictions:
        table.add_row(
            prediction.name,
            number_cell(prediction.predicted),
            number_cell(prediction.measured),
            number_cell(prediction.tolerance),
            prediction.unit,
            outcome(prediction.to_dict()),
        )
    console.print(table)
    for finding in policy.findings:
        say(console, f"{policy.policy}, {policy.backend}: {finding}", "bold")
    say(console)
    console.file.flush()
