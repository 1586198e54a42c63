"""What an engine's start-up log states, and whether it agrees with itself."""

from .facts import LogFacts, Reading, Stated, StatedText
from .reader import read_engine_log

__all__ = ["LogFacts", "Reading", "Stated", "StatedText", "read_engine_log"]
