"""What killed processes were writing, told from what living ones write."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Lock a file or directory, for those to whom the process number means nothing.

    They may be in another container, or on another machine that shares the file system.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def is_abandoned(path: Path, process: int) -> bool:
    """Whether the process of this number, which made `path`, has ended, and nobody holds it."""
    return not _runs(process) and not _is_held(path)


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


def _is_held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)
    except BlockingIOError:
        return True
    except OSError:  # gone, not ours to read, or on a file system without locks
        return False
    return False
