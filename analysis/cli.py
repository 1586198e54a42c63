"""The command line. Verbs load what they need only when they run, so that help is instant."""

import sys
from collections.abc import Sequence

import typer

from .commands import compare, policies, run, trace

# Plain text: rich's panels would cost start-up time and break one-line messages.
app = typer.Typer(
    help="Where does LLM KV-cache memory go? One request trace, one memory manager, simulated.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(compare.compare)
app.command()(run.run)
app.command()(policies.policies)
app.add_typer(trace.app, name="trace")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `kvtwin` with `arguments` (default: the process's own) and exit.

    Exit code 0; 2 after one line on stderr where the user can mend it; bugs keep their traceback.
    """
    if arguments is None:
        arguments = sys.argv[1:]
    try:
        code = app(args=list(arguments) or ["--help"], prog_name="kvtwin", standalone_mode=False)
    except typer.Abort:
        sys.exit(130)
    except Exception as error:
        # The user's mistakes, kvtwin's UserError and typer's own, carry an exit code; bugs do not.
        if not hasattr(error, "exit_code"):
            raise
        print(f"kvtwin: {_one_line(error)}", file=sys.stderr)
        sys.exit(error.exit_code)
    sys.exit(code if isinstance(code, int) else 0)


def _one_line(error: Exception) -> str:
    if not hasattr(error, "format_message"):
        return str(error)
    message = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    where = context.command_path if context else "kvtwin"
    return f"{message.rstrip('.')}; see {where} --help"
