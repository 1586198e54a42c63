"""Readers and writers of trace formats, one file each."""

from .registry import FORMATS, WRITABLE_FORMATS

__all__ = ["FORMATS", "WRITABLE_FORMATS"]
