"""Readers and writers of trace formats, one file each."""

from .registry import FORMATS

__all__ = ["FORMATS"]
