"""Where results go: all or nothing, and never over anybody else's files."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvtwin.traces import UserError
from kvtwin.traces.abandoned import held

from .layout import MARKERS
from .leftovers import foreign_entry, remove_leftovers, replaced_dir, staging_dir


def check_output_dir(out: Path, *, force: bool) -> None:
    """Refuse an output directory that may not be written or replaced, before any work is done.

    Raises:
        UserError: `out` is a file; it holds files and `force` is not given; it does not look like
            kvtwin's own output; or it holds a file that kvtwin did not write.
    """
    if not os.path.lexists(out):
        return
    if not out.is_dir():
        raise UserError(f"--out {out} is not a directory; choose another --out")
    entries = sorted(path.name for path in out.iterdir())
    if not entries:
        return
    if not force:
        raise UserError(f"--out {out} is not empty; use --force to replace it or another --out")
    if not MARKERS.intersection(entries):
        raise UserError(
            f"--out {out} holds no {' or '.join(sorted(MARKERS))}, so --force will not replace it; "
            "choose another --out"
        )
    if (foreign := foreign_entry(out)) is not None:
        raise UserError(
            f"--out {out} holds {foreign.relative_to(out)}, which kvtwin did not write, so "
            "--force will not replace it; move that file or choose another --out"
        )


@contextmanager
def replacing(out: Path, *, force: bool) -> Iterator[Path]:
    """Yield an empty directory beside `out` that takes its place if the block ends without error.

    What killed runs with the same `out` have left there is removed first.

    Raises:
        UserError: `out` is refused by `check_output_dir`, or its parent cannot be written.
    """
    check_output_dir(out, force=force)
    # Through a link the target is replaced, not the link.
    try:
        out = out.resolve()
    except RuntimeError as error:  # a loop of links
        raise UserError(f"--out {out} cannot be written: {error}; choose another --out") from error
    made = _make_parents(out)
    staging, finished = staging_dir(out), False
    try:
        with suppress(OSError):  # no reason not to run
            remove_leftovers(out)
        try:
            staging.mkdir()
        except OSError as error:
            raise _not_writable(out, error) from error
        with held(staging):
            yield staging
            # Files may have come in the meantime.
            check_output_dir(out, force=force)
            _swap(staging, out)
        finished = True
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if not finished:
            _remove(made)


def _swap(staging: Path, out: Path) -> None:
    old = replaced_dir(out)
    try:
        if out.is_dir():
            out.rename(old)
        try:
            staging.rename(out)
        except OSError:
            if old.is_dir():
                old.rename(out)
            raise
    except OSError as error:
        raise _not_writable(out, error) from error
    if old.is_dir():
        shutil.rmtree(old, ignore_errors=True)  # what is left goes with the next run


def _make_parents(out: Path) -> list[Path]:
    """Make the missing parents of `out`; return those made, innermost first."""
    missing = [parent for parent in out.parents if not parent.exists()]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _remove(missing)
        raise _not_writable(out, error) from error
    return missing


def _remove(directories: list[Path]) -> None:
    for directory in directories:
        if directory.is_dir() and not any(directory.iterdir()):
            directory.rmdir()


def _not_writable(out: Path, error: OSError) -> UserError:
    reason = error.strerror or error
    return UserError(f"--out {out} cannot be written: {reason}; choose another --out")
