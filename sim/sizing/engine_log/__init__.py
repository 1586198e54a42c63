"""What an engine's start-up log states, and whether it agrees with itself."""

from .check import Check
from .checks import check_log, first_disagreement
from .facts import LogFacts, Reading, Stated, StatedText
from .reader import read_engine_log

__all__ = [
    "Check",
    "LogFacts",
    "Reading",
    "Stated",
    "StatedText",
    "check_log",
    "first_disagreement",
    "read_engine_log",
]
