"""Directories beside `--out` that runs were writing, or putting aside, when they were killed."""

import os
import re
import shutil
from pathlib import Path

from kvtwin.traces.abandoned import is_abandoned

from .layout import OWN_FILES


def staging_dir(out: Path) -> Path:
    """Where this process writes what will become `out`."""
    # The process number keeps two runs with the same --out apart.
    return out.with_name(f".{out.name}.{os.getpid()}.partial")


def replaced_dir(out: Path) -> Path:
    """Where this process puts the old `out` aside until the new one is in its place."""
    return staging_dir(out).with_suffix(".replaced")


def foreign_entry(directory: Path) -> Path | None:
    """The first entry below `directory` that kvtwin did not write, if there is one."""
    for path in sorted(directory.rglob("*")):
        if path.is_symlink() or (not path.is_dir() and path.name not in OWN_FILES):
            return path
    return None


def remove_leftovers(out: Path) -> None:
    """Remove what runs with this `out` were writing, or had replaced, when their process was killed.

    One that somebody holds, whose process runs, or with a file that kvtwin did not write, stays.
    So do replaced results while there is no `out`: then they are the only ones.
    """
    kinds = "partial|replaced" if out.is_dir() else "partial"
    name = re.compile(rf"\.{re.escape(out.name)}\.([1-9][0-9]{{0,8}})\.({kinds})")
    for path in out.parent.iterdir():
        match = name.fullmatch(path.name)
        if (
            match
            and path.is_dir()
            and is_abandoned(path, int(match[1]))
            and foreign_entry(path) is None
        ):
            shutil.rmtree(path, ignore_errors=True)
