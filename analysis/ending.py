"""How a signal ends the program: as an error would, so that nothing half-written is left."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Ctrl-C, kill, a terminal that is closed
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_RETRY_S = 0.02


def end_on_signals() -> None:
    """From now on these raise SystemExit with 128 + their number, but those that the caller has had ignored."""
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


@contextmanager
def starting_children() -> Iterator[None]:
    """Child processes that are started in here are told nothing by these signals, which a terminal sends to them, too.

    Their parent ends them, with SIGKILL. Its own signals wait until all are started.
    """
    # Children inherit the mask. It does not keep another thread of this process from taking a signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


def _end(number: int, frame: FrameType | None) -> None:
    is_starting = signal.SIGHUP in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    if is_starting or _is_importing(frame):
        # Half a start leaves a child that complains. In an import an exception comes out as another one, or takes down
        # an extension that is half initialized.
        # Not by a thread: starting one takes locks that whoever is interrupted here may hold.
        signal.signal(signal.SIGALRM, lambda _, later: _end(number, later))
        signal.setitimer(signal.ITIMER_REAL, _RETRY_S)
        return
    # A second one must not interrupt the cleaning up that the exception starts.
    for other in _ENDING:
        signal.signal(other, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
