"""What an allocator must log to be executed, said to whoever wrote one that does not."""

from kvtwin.sim import Allocator
from kvtwin.traces import UserError

from .tables import Key, in_words


def unlogged_grant(policy: Allocator, key: Key, num_needed: int) -> UserError:
    """Of a sequence whose next step needs `num_needed` blocks, and that the log gave none."""
    return UserError(
        f"policy {_name(policy)}: {in_words(*key)} computes what needs {num_needed:,} {_unit(policy)}, and its log "
        "gave it none; grant, extend and grow must record every run they take, e.g. "
        'self.record("grant", seq, first, num)'
    )


def _name(policy: Allocator) -> str:
    """As `--policies` takes it."""
    return f"{type(policy).__module__}:{type(policy).__qualname__}"


def _unit(policy: Allocator) -> str:
    return "slots" if policy.block_slots == 1 else "blocks"
