"""The V1 scheduler visits a decoding request where something changes; one that visits everybody does the same.

Both give the tokens that vLLM's rules give: who runs in order of admission, then who waits, within one budget.
"""

from typing import Any

from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtwin.sim.vllm_v1.block_pool import BlockPool
from kvtwin.sim.vllm_v1.request import Request
from kvtwin.sim.vllm_v1.scheduler import Scheduler
from kvtwin.sim.vllm_v1.settings import SchedulerSettings


class VisitsEverybody(Scheduler):
    """Whoever decodes is looked at before each step."""

    def _sleep(self, request: Request, computed: int) -> None:
        self._wake(request, computed - request.offset)


@st.composite
def cases(draw: st.DrawFn) -> tuple[SchedulerSettings, list[tuple[int, int, int, int, int, int]]]:
    """Settings of a tight pool, and requests of (step they come, prompt, output, content, priority, step they go)."""
    windows = draw(
        st.sampled_from([(None,), (None, 3), (5,), (7, None, 4), (None, 9), (2, 2), (None, 1)])
    )
    requests = draw(
        st.lists(
            st.tuples(
                st.integers(0, 12),
                st.integers(1, 20),
                st.integers(1, 20),
                st.integers(0, 1),
                st.integers(0, 2),
                st.sampled_from([1000, 1000, 1000, 8, 15]),
            ),
            min_size=1,
            max_size=8,
        )
    )
    block_size = draw(st.integers(1, 4))
    longest = max(prompt + output for _, prompt, output, *_ in requests)
    # The longest fits alone, into every group.
    least = (-(-longest // block_size) + 1) * len(windows) + 1
    made = SchedulerSettings(
        num_gpu_blocks=least + draw(st.integers(0, 20)),
        max_model_len=100,
        block_size=block_size,
        windows=windows,
        max_num_seqs=draw(st.integers(1, 6)),
        max_num_batched_tokens=draw(st.sampled_from([6, 9, 200])),
        enable_prefix_caching=draw(st.booleans()),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 3])),
        long_prefill_token_threshold_adaptive=draw(st.booleans()),
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        prefix_cache_retention_interval=draw(st.sampled_from([0, None, 2 * block_size])),
    )
    return made, sorted(requests)


class Rules:
    """What one step gives to whom if nobody has to leave, from known and computed tokens alone."""

    def __init__(self, scheduler: Scheduler) -> None:
        made, running = scheduler.settings, list(scheduler.running.values())
        num_requests = len(running) + len(scheduler.waiting)
        self.most = self.budget = made.max_num_batched_tokens
        if num_requests > 1 and made.long_prefill_token_threshold:
            self.most = made.long_prefill_token_threshold
            if made.long_prefill_token_threshold_adaptive:
                self.most = max(self.most, self.budget // num_requests)
        self.given = []
        for request in running:
            if request.decodes:
                scheduler.settle(request)
            num = min(request.known - request.computed, self.most, self.budget)
            self.budget -= num
            if num:
                self.given.append((request.row, num))

    def check(self, batch: list[tuple[int, int]], requests: list[Request]) -> None:
        """Those who were admitted come last, each with as much as the budget leaves."""
        assert batch[: len(self.given)] == self.given
        for row, num in batch[len(self.given) :]:
            missing = requests[row].known - (requests[row].computed - num)
            assert num == min(missing, self.most, self.budget)
            self.budget -= num
        assert self.budget >= 0


def history(kind: type[Scheduler], made: SchedulerSettings, requests: list[Any]) -> list[Any]:
    """What each step decides, and the pool behind it: the free queue in order, keys, and block tables."""
    scheduler = kind(made, BlockPool(made.num_gpu_blocks))
    pool, rows, ended = scheduler.cache.pool, [], set[int]()
    to_come = [
        Request(row, prompt, output, made.max_model_len, priority)
        for row, (_, prompt, output, _, priority, _) in enumerate(requests)
    ]
    for request, (_, prompt, output, content, _, _) in zip(to_come, requests, strict=True):
        request.spans = [(content << 20, prompt), ((9 + request.row) << 20, output)]
    for step in range(600):
        for request, (come, *_, leave) in zip(to_come, requests, strict=True):
            if come == step:
                scheduler.add(request)
            if leave == step and come < step and not request.ended:
                scheduler.end(request)
                ended.add(request.row)
        rules = Rules(scheduler)
        scheduled = scheduler.schedule()
        batch = [(request.row, num) for request, num in scheduler.batch(scheduled)]
        tables = {r.row: [list(table) for table in r.tables] for r in scheduler.running.values()}
        preempted = [request.row for request in scheduled.preempted]
        assert sum(num for _, num in batch) == scheduled.num_tokens <= made.max_num_batched_tokens
        if not preempted:
            rules.check(batch, to_come)
        rows.append((batch, preempted, list(pool.free), list(pool.keys), tables))
        finished = [request.row for request in scheduler.update(scheduled)]
        ended.update(finished)
        rows.append((finished, list(pool.free)))
        if len(ended) == len(requests) and step > 15:
            return rows
    raise AssertionError(f"{len(ended)} of {len(requests)} requests ended in 600 steps")


def test_nothing_is_missed_between_visits() -> None:
    seen = dict.fromkeys(("preempted", "finished"), 0)

    @settings(max_examples=examples(150))
    @given(case=cases())
    def same(case: tuple[SchedulerSettings, list[Any]]) -> None:
        fast, naive = (history(kind, *case) for kind in (Scheduler, VisitsEverybody))
        for number, (one, other) in enumerate(zip(fast, naive, strict=True)):
            assert one == other, f"step {number // 2}"
        seen["preempted"] += sum(len(row[1]) for row in fast[::2])
        seen["finished"] += sum(len(row[0]) for row in fast[1::2])

    same()
    assert all(seen.values()), seen
