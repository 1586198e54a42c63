"""The command line. Verbs load what they need only when they run, so that help is instant."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from .commands import (
    calibrate,
    compare,
    explain,
    gpu,
    policies,
    replay_golden,
    run,
    size,
    trace,
    validate,
)
from .ending import end_on_signals
from .unknown_flags import unknown_flag

# Plain text: rich's panels would cost start-up time and break one-line messages.
app = typer.Typer(
    help="Where does LLM KV-cache memory go? One request trace, one memory manager, simulated and executed.",
    add_completion=False,
    # vLLM takes underscores for hyphens in the names of flags.
    context_settings={"token_normalize_func": lambda name: name.replace("_", "-")},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(compare.compare)
app.command()(run.run)
app.command()(size.size)
app.command()(calibrate.calibrate)
app.command()(validate.validate)
app.command()(policies.policies)
app.command(hidden=True)(replay_golden.replay_golden)
app.add_typer(trace.app, name="trace")
app.add_typer(explain.app, name="explain")
app.add_typer(gpu.app, name="gpu")


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"kvtwin {version('kvtwin')}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `kvtwin` with `arguments` (default: the process's own) and exit.

    Exit code 0; 2 after one line on stderr where the user can mend it; 130 after Ctrl-C, 143 after
    SIGTERM and 129 after SIGHUP, with nothing half-written; bugs keep their traceback.
    """
    own = arguments is None
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if own:
        # Only a process of its own: a caller in Python keeps its signals.
        end_on_signals()
    for argument in arguments:
        if not _is_utf8(argument):
            print(
                f"kvtwin: {argument!r} is not UTF-8; rename it, or use another name",
                file=sys.stderr,
            )
            sys.exit(2)
    try:
        code = app(args=arguments or ["--help"], prog_name="kvtwin", standalone_mode=False)
    except typer.Abort:
        sys.exit(130)
    except OSError as error:
        # Whatever is not caught where it is better known: a full disk, a closed pipe.
        where = f" ({error.filename})" if error.filename else ""
        print(f"kvtwin: {error.strerror or error}{where}", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        # The user's mistakes, kvtwin's UserError and typer's own, carry an exit code; bugs do not.
        if not hasattr(error, "exit_code"):
            raise
        print(f"kvtwin: {_one_line(error, arguments)}", file=sys.stderr)
        sys.exit(error.exit_code)
    sys.exit(code if isinstance(code, int) else 0)


def _is_utf8(argument: str) -> bool:
    # Bytes of an argument that are not come as lone surrogates, which neither Arrow nor JSON writes.
    return not any("\ud800" <= character <= "\udfff" for character in argument)


def _one_line(error: Exception, arguments: Sequence[str]) -> str:
    if not hasattr(error, "format_message"):
        return str(error)
    context = getattr(error, "ctx", None)
    if hasattr(error, "possibilities") and context:
        return unknown_flag(getattr(error, "option_name", ""), context, arguments)
    message = _unread_number(error) or " ".join(error.format_message().split())
    where = context.command_path if context else "kvtwin"
    return f"{message.rstrip('.')}; see {where} --help"


def _unread_number(error: Any) -> str | None:
    """On a flag whose value is no number, which some versions of typer do not repeat; None for anything else."""
    cause = error.__context__
    if not hasattr(cause, "errors") or getattr(error, "param", None) is None:
        return None
    found = cause.errors()[0]
    kind = {"float_parsing": "number", "int_parsing": "whole number"}.get(found["type"])
    if kind is None:
        return None
    flag, unit = error.param.opts[0], error.param.metavar or ""
    # Those of one letter stand for any number.
    kind += f" ({unit})" if len(unit) > 1 else ""
    return f"{flag} is {found['input']!r}; it must be a {kind}"
