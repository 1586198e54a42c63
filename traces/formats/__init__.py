"""Readers of public trace formats, one file each."""

from .registry import FORMATS, Format

__all__ = ["FORMATS", "Format"]
