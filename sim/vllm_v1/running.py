"""The requests that run, and when each of them needs to be looked at."""

from __future__ import annotations

from .block_pool import BlockPool
from .cache_manager import CacheManager
from .request import Request
from .settings import SchedulerSettings
from .waiting import waiting_queue

# By step: requests with the serial they had when they were put there. It is a new one after a preemption.
Calendar = dict[int, list[tuple[int, Request]]]


class Running:
    """What the scheduler keeps between two steps.

    A request that decodes computes a token in each step, and needs a visit where its table grows, where a block becomes
    full and where a window moves on; in between it is not touched, as long as the budget reaches everybody. With
    asynchronous scheduling nobody counts as decoding.
    """

    def __init__(self, settings: SchedulerSettings, pool: BlockPool) -> None:
        self.settings = settings
        self.cache = CacheManager(settings, pool)
        self.waiting = waiting_queue(settings.policy)
        self.running: dict[int, Request] = {}  # by serial, which is the order of admission
        self.step = 0
        self.num_decoding = 0
        self.sum_offsets = 0  # of the decoding ones
        self._prefilling: dict[int, Request] = {}  # running ones that do not decode
        self._visits: Calendar = {}
        self._finishes: Calendar = {}
        self._async = settings.async_scheduling
        self._caches = settings.enable_prefix_caching
        self._block_size = settings.block_size
        self._windows = [window for window in settings.windows if window is not None]

    def settle(self, request: Request) -> None:
        """Bring `computed` and `known` of a decoding request up to date, between two steps."""
        request.computed = self.step + request.offset
        request.known = request.computed + 1

    def end(self, request: Request) -> None:
        """It has its last token, or its client has left."""
        request.ended = True
        if request.running:
            self._stop(request)
            self.cache.free(request)
        else:
            self.waiting.remove(request)

    def _stop(self, request: Request) -> None:
        """It no longer runs."""
        request.running = False
        del self.running[request.serial]
        if request.decodes:
            self.settle(request)
            request.decodes = False
            self.num_decoding -= 1
            self.sum_offsets -= request.offset
        else:
            del self._prefilling[request.serial]

    def _decode(self, request: Request) -> None:
        """From the next step on it computes a token in each."""
        del self._prefilling[request.serial]
        request.decodes = True
        request.offset = request.computed - self.step
        self.num_decoding += 1
        self.sum_offsets += request.offset
        self._finish(request, self.step + request.end_tokens - request.computed - 2)
        if self._windows:  # which the last chunk has moved on by more than a token
            self._wake(request, self.step)
        else:
            self._sleep(request, request.computed)

    def _sleep(self, request: Request, computed: int) -> None:
        """Nothing happens to a decoding request until the step before which it has so many tokens, or more."""
        size = self._block_size
        steps = -computed % size  # to a block more
        if self._caches and steps:
            steps -= 1  # to a full block
        for window in self._windows:
            steps = min(steps, (window - 1 - computed) % size)  # to a block out of sight
        self._wake(request, computed - request.offset + steps)

    def _wake(self, request: Request, step: int) -> None:
        request.wake_step = step
        self._visits.setdefault(step, []).append((request.serial, request))

    def _finish(self, request: Request, step: int) -> None:
        request.finish_step = step
        self._finishes.setdefault(step, []).append((request.serial, request))
