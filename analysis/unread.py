"""Options that were given and that none of the policies reads."""

import dataclasses
from collections.abc import Sequence

from kvtwin.sim import RunConfig, find_policy, policy_names
from kvtwin.sim.policies.policy import POLICY_FIELDS

from .setting import REFERENCE


def unread_notes(config: RunConfig, policies: Sequence[str]) -> list[str]:
    """A sentence for each; what is as it is by itself, or in the reference setting, counts as not given."""
    read = [options_of(name) for name in policies]
    notes = []
    for field in dataclasses.fields(config):
        name, usual = field.name, (field.default, REFERENCE.get(field.name))
        if name not in POLICY_FIELDS or getattr(config, name) in usual:
            continue
        if any(name in options for options in read):
            continue
        readers = ", ".join(policy for policy in policy_names() if name in options_of(policy))
        flag = "--" + name.replace("_", "-")
        notes.append(f"{flag} has no effect on {', '.join(policies)}; it is read by {readers}")
    return notes


def options_of(policy: str) -> frozenset[str]:
    """What it reads of those that not all read; one from outside may not say."""
    options = find_policy(policy).options
    return frozenset(POLICY_FIELDS) if options is None else options
