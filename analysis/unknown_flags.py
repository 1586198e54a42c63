"""What is said of a flag that a verb does not have."""

from collections.abc import Iterator, Sequence
from typing import Any


def unknown_flag(option: str, context: Any, arguments: Sequence[str]) -> str:
    """One line on `option`, which the verb of typer's `context` lacks; `arguments` are the whole command line.

    Where it stands for something else, or for nothing, that is said; else which verbs have it; else what is spelled
    like it.
    """
    from kvtwin.sim.names import meant_setting
    from kvtwin.sim.vllm_flags import said_elsewhere

    said = _as_typed(option, arguments)
    line = f"No such option: {''.join(char if char.isprintable() else '?' for char in said)}"
    if instead := said_elsewhere(said):
        return f"{line}; {instead}"
    verbs = [name for name, verb in _verbs(context) if said in _flags(verb)]
    if verbs:
        own = context.command_path.removeprefix("kvtwin ")
        return f"{line}; it is a flag of kvtwin {_listed(verbs)}, not of {own}"
    return (
        f"{line}{meant_setting(said, _flags(context.command))}; see {context.command_path} --help"
    )


def _as_typed(option: str, arguments: Sequence[str]) -> str:
    """`-pp` where typer, which reads it as two short flags, names `-p`."""
    if option.startswith("--"):
        return option
    typed = (argument.partition("=")[0] for argument in arguments)
    return next((said for said in typed if said.startswith(option)), option)


def _verbs(context: Any) -> Iterator[tuple[str, Any]]:
    root = context.find_root().command
    return ((name, verb) for name, verb in root.commands.items() if not verb.hidden)


def _flags(command: Any) -> list[str]:
    found = [flag for option in command.params for flag in (*option.opts, *option.secondary_opts)]
    return [flag for flag in found if flag.startswith("-")]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + (" and " if names[1:] else "") + names[-1]
