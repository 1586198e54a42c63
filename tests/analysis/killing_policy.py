"""A policy that asks for the end of the program that runs it, at a moment when it is busy."""

import os
import signal
from pathlib import Path
from typing import Any

from kvtwin.sim.policies.paged import Paged


class _Killer(Paged):
    signal = signal.SIGTERM

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        Path("busy").write_text(str(os.getpid()))
        os.kill(self.program(), self.signal)
        signal.pause()

    def program(self) -> int:
        """Process id of the program; of its process group, if negative."""
        raise NotImplementedError


class KillOwnProcess(_Killer):
    """For `kvtwin run`, which simulates in its own process."""

    def program(self) -> int:
        return os.getpid()


class KillParent(_Killer):
    """For `kvtwin compare`, which simulates in child processes."""

    def program(self) -> int:
        return os.getppid()


class KillOwnProcessAtOnce(KillOwnProcess):
    signal = signal.SIGKILL


class KillParentAtOnce(KillParent):
    signal = signal.SIGKILL


class InterruptGroup(_Killer):
    """The program and its workers at once, as Ctrl-C at a terminal does."""

    signal = signal.SIGINT

    def program(self) -> int:
        return -os.getpgrp()


class HangUpGroup(InterruptGroup):
    signal = signal.SIGHUP


class TerminateGroup(InterruptGroup):
    signal = signal.SIGTERM
