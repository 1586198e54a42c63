"""Whether the figures of a start-up log agree with each other, and which one is the first not to.

Nothing is allowed for but the rounding of what is printed, and whole blocks where an engine counts
in blocks.
"""

from collections.abc import Iterable

from .check import Check
from .facts import LogFacts
from .sglang_checks import sglang_checks
from .trtllm_checks import trtllm_checks
from .vllm_checks import vllm_checks

_OF_ENGINE = {"vllm": vllm_checks, "sglang": sglang_checks, "trtllm": trtllm_checks}


def check_log(
    facts: LogFacts, kv_bytes_per_token: int | None = None, derived: str = ""
) -> list[Check]:
    """Check the figures of a start against each other, in the order of the log.

    `kv_bytes_per_token`: bytes of KV that one token takes on one rank, if known. `derived`: why a
    printed size in tokens is not blocks x block size, such as "window layers"; empty if it is.
    Relations whose result the log does not state are left out; those that lack another figure, or
    do not hold for this model or setting, are there as not applicable.
    """
    checks = _OF_ENGINE[facts.engine](facts, kv_bytes_per_token, derived)
    return sorted(checks, key=lambda check: check.line_number)


def first_disagreement(checks: Iterable[Check]) -> Check | None:
    """The first check, in their order, whose sides do not agree."""
    return next((check for check in checks if check.verdict == "disagrees"), None)
