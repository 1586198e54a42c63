"""Directories beside `--out` that runs were writing, or putting aside, when they were killed."""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Lock `directory`, for those to whom the process number means nothing.

    They may be in another container, or on another machine that shares the file system.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


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
            and not _runs(int(match[1]))
            and not _is_held(path)
            and foreign_entry(path) is None
        ):
            shutil.rmtree(path, ignore_errors=True)


def _runs(process: int) -> bool:
    """Whether another process has this number. Who left something under our own is gone."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def _is_held(directory: Path) -> bool:
    try:
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)
    except BlockingIOError:
        return True
    except OSError:  # gone, not ours to read, or on a file system without locks
        return False
    return False
