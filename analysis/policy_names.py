"""Policies as they are named on the command line."""

from kvtwin.sim import find_policy, policy_names
from kvtwin.traces import UserError


def parse_policies(listed: str) -> list[str]:
    """The policies in a comma-separated list, in its order.

    Raises:
        UserError: an empty list, an unknown name, or a policy given twice.
    """
    names = [name.strip() for name in listed.split(",") if name.strip()]
    known = policy_names()
    if not names:
        raise UserError(f"--policies names no policy; choose from {', '.join(known)}")
    for name in names:
        find_policy(name)
        if names.count(name) > 1:
            raise UserError(f"--policies names {name} twice; name each policy once")
    return names


def check_policy(name: str) -> None:
    """Refuse what is not the name of one policy.

    Raises:
        UserError: a list of policies, or an unknown name.
    """
    if "," in name:
        raise UserError(
            f"--policy is {name!r}, but run takes one policy; compare --policies {name} runs several"
        )
    find_policy(name)
