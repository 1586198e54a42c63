"""A recorded run again, step by step, in the rows of the recording."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from itertools import product
from typing import Any, NamedTuple

from .block_pool import BlockPool
from .cache_manager import Hit
from .hashes import EventWriter
from .recording import RecordedRequest, Recording
from .request import Request
from .scheduled import Scheduled
from .scheduler import Scheduler

Row = dict[str, Any]
_MOST_BLOCKS_IN_CLEAR = 128
_DIGEST_DIGITS = 16


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS]


class _Notes:
    """What happens to blocks in a step, in order."""

    def __init__(self, num_groups: int, events: EventWriter | None) -> None:
        self._num_groups = num_groups
        self._events = events
        self.taken_blocks: list[tuple[str, list[list[int]]]] = []
        self.hits: list[tuple[str, list[list[int]]]] = []

    def taken(self, request: Request, group: int, blocks: Seq[int]) -> None:
        if not self.taken_blocks or self.taken_blocks[-1][0] != request.request_id:
            self.taken_blocks.append((request.request_id, [[] for _ in range(self._num_groups)]))
        self.taken_blocks[-1][1][group].extend(blocks)

    def found(self, request: Request, hit: Hit) -> None:
        self.hits.append((request.request_id, hit.blocks))

    def stored(self, request: Request, group: int, begin: int, stored: Seq[bool]) -> None:
        if self._events is not None:
            self._events.stored(request, group, begin, stored)

    def removed(self, key: int) -> None:
        if self._events is not None:
            self._events.removed(key)

    def released(self, request: Request, group: int, blocks: Seq[int]) -> None:
        """Rows do not say it."""

    def take_rows(self) -> Row:
        """Fields `hit` and `alloc` of a row; one list of blocks, or one for each group."""
        row = {
            name: [[request_id, self._shown(blocks)] for request_id, blocks in noted]
            for name, noted in (("hit", self.hits), ("alloc", self.taken_blocks))
        }
        self.hits, self.taken_blocks = [], []
        return row

    def _shown(self, blocks: list[list[int]]) -> list[Any]:
        return blocks if self._num_groups > 1 else blocks[0]


class Reading(NamedTuple):
    """What the format of recordings leaves open. It changes which row says something, and nothing that happens."""

    late_news: bool = (
        False  # arrivals, refusals and aborts that leave nobody are in the next row, or in none
    )
    late_events: bool = False  # a row without `upd` leaves its events to the next one
    keeps_under_way: bool = False  # while nobody is unfinished, or they are processed unseen
    queues_empty: bool = True  # schedules of nothing, too, or they are processed at once


def readings(recording: Recording) -> Iterator[Reading]:
    """All that can make a difference to this recording, the likeliest first."""
    asynchronous = [False, True] if recording.config.settings.async_scheduling else [False]
    for late_news, late_events, keeps, ignores in product(
        [False, True], asynchronous, asynchronous, asynchronous
    ):
        yield Reading(late_news, late_events, keeps, not ignores)


class Replay:
    """Runs the scheduler on the requests of a recording."""

    def __init__(self, recording: Recording, reading: Reading) -> None:
        self._recording, self._reading = recording, reading
        self._news = _no_news()
        self._num_stored = self._num_evicted = 0  # as far as rows have said
        settings = recording.config.settings
        self.scheduler = Scheduler(settings, BlockPool(settings.num_gpu_blocks))
        cache = self.scheduler.cache
        self._events = EventWriter(cache) if recording.config.has_events else None
        self._notes = _Notes(len(cache.groups), self._events)
        cache.listen(self._notes)
        self._caches = recording.config.settings.enable_prefix_caching
        by_arrival = sorted(enumerate(recording.requests), key=lambda entry: entry[1].arrival_step)
        self._to_come = deque(by_arrival)
        self._aborts: dict[int, list[int]] = {}
        for row, recorded in by_arrival:
            if recorded.abort_step is not None:
                self._aborts.setdefault(recorded.abort_step, []).append(row)
        self._alive: dict[int, Request] = {}
        # Steps that have not been processed: number, schedule, who gets a token.
        self._under_way: deque[tuple[int, Scheduled, list[Request]]] = deque()
        self._most_under_way = 2 if recording.config.settings.async_scheduling else 1

    def rows(self) -> Iterator[Row]:
        """One for each step in which a request is unfinished."""
        step = num_rows = 0
        while num_rows < self._recording.config.most_rows and (self._alive or self._to_come):
            if not self._alive:
                if not self._reading.keeps_under_way:
                    self._under_way.clear()
                step = max(step, self._to_come[0][1].arrival_step)
            row: Row = {"step": step}
            self._arrive(step, row)
            if self._alive:
                self._run(step, row)
                num_rows += 1
                self._news = _no_news()
                yield {
                    name: value
                    for name, value in row.items()
                    if not (isinstance(value, list | dict) and not value and name != "freeq")
                }
            step += 1

    def _arrive(self, step: int, row: Row) -> None:
        if not self._reading.late_news:
            self._news = _no_news()
        row |= self._news
        while self._to_come and self._to_come[0][1].arrival_step <= step:
            number, recorded = self._to_come.popleft()
            if recorded.num_prompt_tokens >= self._recording.config.settings.max_model_len:
                row["reject"].append(recorded.request_id)
            else:
                row["arrive"].append(recorded.request_id)
                self._alive[number] = self._request(number, recorded)
                self.scheduler.add(self._alive[number])
        for number in self._aborts.pop(step, ()):
            if number in self._alive:
                request = self._alive.pop(number)
                row["abort"].append(request.request_id)
                self.scheduler.end(request)

    def _request(self, number: int, recorded: RecordedRequest) -> Request:
        request = Request(
            number,
            recorded.num_prompt_tokens,
            recorded.max_tokens,
            self._recording.config.settings.max_model_len,
            recorded.priority,
            recorded.request_id,
        )
        request.spans = recorded.spans
        return request

    def _run(self, step: int, row: Row) -> None:
        scheduler = self.scheduler
        pool, waiting, running = scheduler.cache.pool, scheduler.waiting, scheduler.running
        scheduled = scheduler.schedule()
        batch = scheduler.batch(scheduled)
        row["sched"] = [[request.request_id, num_tokens] for request, num_tokens in batch]
        row["admit"] = [
            [request.request_id, "resumed" if resumed else "new", num_hit_tokens]
            for request, resumed, num_hit_tokens in scheduled.admitted
        ]
        row |= self._notes.take_rows()
        row["preempt"] = [request.request_id for request in scheduled.preempted]
        row["run"], row["wait"] = len(running), len(waiting)
        row["free"] = len(pool.free)
        row["used"] = pool.num_blocks - 1 - row["free"]
        row["bt"] = _digest(";".join(_table_text(request) for request in running.values()))
        if self._recording.config.has_tables:
            row["tables"] = {request.request_id: _tables(request) for request in running.values()}
            row["waitq"] = [request.request_id for request in waiting]
        stalls = not running and not scheduled.preempted and bool(waiting)
        if stalls:
            request = waiting.head()
            row["stall"] = [request.request_id]
            scheduler.end(request)
            del self._alive[request.row]
        gets_token = {
            request
            for (request, _), gets in zip(scheduled.chunks, scheduled.gets_token, strict=True)
            if gets
        }
        getting = [request for request, _ in batch if request.decodes or request in gets_token]
        is_empty, under_way = not scheduled.num_tokens, self._under_way
        if self._reading.queues_empty or not is_empty:
            under_way.append((step, scheduled, getting))
            processes = len(under_way) == self._most_under_way or (is_empty and not self._alive)
        else:
            processes = bool(under_way)
        if processes:
            self._process(row)
        row["free_end"] = len(pool.free)
        row["used_end"] = pool.num_blocks - 1 - row["free_end"]
        row["fq"] = _digest(",".join(map(str, pool.free)))
        if self._recording.config.has_tables and pool.num_blocks <= _MOST_BLOCKS_IN_CLEAR:
            row["freeq"] = list(pool.free)
        if self._caches:
            row["cached"] = len(pool.by_key)
        self._tell_events(row, processes or not self._reading.late_events)

    def _tell_events(self, row: Row, all_of_them: bool) -> None:
        pool = self.scheduler.cache.pool
        if self._caches:
            row["store"] = (pool.num_stored - self._num_stored) * all_of_them
            row["evict"] = (pool.num_evicted - self._num_evicted) * all_of_them
        if self._events is not None:
            row["events"] = self._events.take() if all_of_them else []
        if all_of_them:
            self._num_stored, self._num_evicted = pool.num_stored, pool.num_evicted

    def _process(self, row: Row) -> None:
        """The oldest step under way has been computed."""
        row["upd"], processed, getting = self._under_way.popleft()
        if self._recording.config.has_tables:
            row["out"] = [request.request_id for request in getting if not request.ended]
        ended = self.scheduler.update(processed)
        row["finish"] = [request.request_id for request in ended]
        for request in ended:
            del self._alive[request.row]


def _no_news() -> Row:
    return {"arrive": [], "reject": [], "abort": []}


def _table_text(request: Request) -> str:
    tables = "|".join(",".join(map(str, table)) for table in request.tables)
    return f"{request.request_id}:{tables}"


def _tables(request: Request) -> list[Any]:
    """As they are now: later steps change them in place."""
    tables = [list(table) for table in request.tables]
    return tables if len(tables) > 1 else tables[0]
