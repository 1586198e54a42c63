"""What is said of flags that a verb does not have."""

from collections.abc import Iterator, Sequence
from typing import Any

_ONE_OR_MANY = {"--policy": "--policies", "--policies": "--policy"}


def unknown_flag(option: str, context: Any, arguments: Sequence[str]) -> str:
    """One line on `option`, which the verb of typer's `context` lacks, and on all others in `arguments` that it lacks.

    `arguments` are the whole command line. Where a flag stands for something else, or for nothing, that is said; else
    which verbs have it; else what is spelled like it.
    """
    from kvtwin.sim.names import listed, meant_setting
    from kvtwin.sim.vllm_flags import Elsewhere, names_refused, said_elsewhere

    known = {*_flags(context.command), *context.help_option_names}
    typed = list(_typed(context, arguments))
    policies = [value for flag, value in typed if flag in ("--policy", "--policies")]
    caches = _caches(policies[-1].split(",")) if policies else None
    sizes = context.info_name == "size"
    own = context.command_path.removeprefix("kvtwin ")
    found, unclear = {}, False
    for flag in dict.fromkeys(flag for flag, _ in typed if flag not in known) or [option]:
        elsewhere = said_elsewhere(flag, caches=caches, sizes=sizes)
        verbs = [name for name, verb in _verbs(context) if flag in _flags(verb)]
        if elsewhere is None and verbs:
            where, here = f"a flag of kvtwin {listed(verbs)}, not of {own}", _ONE_OR_MANY.get(flag)
            elsewhere = Elsewhere(where, leave_out=True)
            if here in known:
                elsewhere = Elsewhere(f"{where}: use {here}")
        if elsewhere is None:
            elsewhere, unclear = Elsewhere(meant_setting(flag, _flags(context.command))), True
        found["".join(char if char.isprintable() else "?" for char in flag)] = elsewhere
    line = f"No such option{'s' if len(found) > 1 else ''}: {names_refused(found)}"
    return f"{line}; see {context.command_path} --help" if unclear else line


def _typed(context: Any, arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(flag, value) of all flags behind the verb; `-pp` is one where typer reads two short ones.

    The value is empty where there is none, or nobody knows whether there is one.
    """
    if hasattr(context.command, "commands"):  # what follows is a verb's, who has other flags
        return
    valued = {
        flag
        for option in context.command.params
        if not getattr(option, "is_flag", False)
        for flag in option.opts
        if flag.startswith("-")
    }
    rest = iter(arguments)
    for verb in context.command_path.split()[1:]:
        next((argument for argument in rest if argument == verb), None)
    for argument in rest:
        if argument == "--":
            return
        flag, equals, value = argument.partition("=")
        if not flag.startswith("-") or not flag.lstrip("-") or flag[1].isdigit():
            continue
        flag = flag.replace("_", "-")
        if not flag.startswith("--") and flag not in valued and flag[:2] in valued:
            flag, equals = flag[:2], flag[2:]  # a value that is written right behind
        if flag in valued and not equals:
            value = next(rest, "")
        yield flag, value


def _caches(policies: Sequence[str]) -> bool | None:
    """Whether all of them cache prefixes, or none; None where they differ, or one is not known."""
    from kvtwin.sim import find_policy
    from kvtwin.traces import UserError

    try:
        answers = {find_policy(name).reuses_prefixes for name in policies}
    except UserError:
        return None
    return answers.pop() if len(answers) == 1 else None


def _verbs(context: Any) -> Iterator[tuple[str, Any]]:
    root = context.find_root().command
    return ((name, verb) for name, verb in root.commands.items() if not verb.hidden)


def _flags(command: Any) -> list[str]:
    found = [flag for option in command.params for flag in (*option.opts, *option.secondary_opts)]
    return [flag for flag in found if flag.startswith("-")]
