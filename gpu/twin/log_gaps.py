"""What an allocator must log to be executed, said to whoever wrote one that does not."""

from kvtwin.sim import Allocator
from kvtwin.traces import UserError

from .tables import Key, in_words


def unlogged_grant(policy: Allocator, key: Key, num_needed: int) -> UserError:
    """Of a sequence whose next step needs `num_needed` blocks, and that the log gave fewer."""
    return UserError(
        f"policy {_name(policy)}: {in_words(*key)} computes what needs {num_needed:,} {_unit(policy)}, and its log "
        "gave it fewer; grant, extend and grow must record every run they take, e.g. "
        'self.record("grant", seq, first, num)'
    )


def unlogged_free(policy: Allocator, key: Key, first: int, num: int) -> UserError:
    """Of blocks [first, first + num) that the log gives to a sequence, and has not taken back from another one."""
    return UserError(
        f"policy {_name(policy)}: its log gives {in_words(*key)} {_unit(policy)} {first:,} to {first + num - 1:,}, and "
        "somebody still holds some of them; free must record every run that comes back: "
        'self.record("free", seq, first, num)'
    )


def _name(policy: Allocator) -> str:
    """As `--policies` takes it."""
    return f"{type(policy).__module__}:{type(policy).__qualname__}"


def _unit(policy: Allocator) -> str:
    return "slots" if policy.block_slots == 1 else "blocks"
