"""The steps of a served engine, reconstructed from when its clients got their tokens.

A client of `vllm bench serve` knows when each of its tokens came, and every decoding sequence gets
one token a step. So the gaps of one sequence are the durations of steps; what a step did follows
from who had a first token before it and a last one at or behind it, and from whose first token it
brought. What cannot be known is left out, and counted: see docs/validation.md.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from kvtwin.traces.formats.vllm_bench import BenchRequest

from ..cost import TOTALS
from .samples import Ints, Samples

_NO_START = "first step behind an idle engine: when it began is unknown"
_CHUNK = "a part of a prompt may have been computed"
_GAP = "a sequence got no token: preempted, or its tokens came together"
_NO_TIME = "no time between tokens"


def bench_steps(
    requests: Sequence[BenchRequest], max_num_batched_tokens: int
) -> tuple[Samples | None, Counter[str]]:
    """The steps that are known, and how many are not, by reason. None: not one is known.

    `max_num_batched_tokens`: the engine's budget of a step; a prompt that did not fit into what was
    left of it may have been computed in parts, which nobody outside sees.
    """
    totals, durations_ns, unknown = [], [], Counter[str]()
    for busy in _busy_times(requests):
        members = [requests[number] for number in busy]
        edges = _edges(members)
        found = _Steps(members, edges)
        problems = found.problems(max_num_batched_tokens)
        unknown.update(problems.values())
        known = [k for k in range(len(edges) + 1) if k not in problems]
        totals.append(found.totals()[known])
        durations_ns.append(found.durations_ns[known])
    if not sum(map(len, totals)):
        return None, unknown
    return Samples(np.concatenate(totals), np.concatenate(durations_ns)[:, None]), unknown


def _busy_times(requests: Sequence[BenchRequest]) -> Iterator[list[int]]:
    """Numbers of the requests whose answers overlap, a list for each time without a break."""
    order = sorted(range(len(requests)), key=lambda number: int(requests[number].piece_ns[0]))
    members: list[int] = []
    end_ns = 0
    for number in order:
        pieces = requests[number].piece_ns
        if members and pieces[0] > end_ns:
            yield members
            members = []
        members.append(number)
        end_ns = max(end_ns, int(pieces[-1])) if len(members) > 1 else int(pieces[-1])
    if members:
        yield members


def _edges(members: Sequence[BenchRequest]) -> Ints:
    """Times that part the steps: midway between tokens of one sequence after the other.

    Tokens of one step come a little apart, but less than half a step.
    """
    ends_ns = np.array([int(request.piece_ns[-1]) for request in members])
    firsts_ns = np.array([int(request.piece_ns[0]) for request in members])
    times = members[0].piece_ns.tolist()
    while (last_ns := times[-1]) < ends_ns.max():
        # Of those that go on, the one that does so longest. Its token nearest to the last of the
        # one before came in the same step.
        alive = np.flatnonzero((firsts_ns <= last_ns) & (ends_ns > last_ns))
        pieces = members[int(alive[ends_ns[alive].argmax()])].piece_ns
        following = pieces[int(np.abs(pieces - last_ns).argmin()) + 1 :].tolist()
        if not following:
            break
        times += following
    steps_ns = np.unique(np.array(times, dtype=np.int64))
    return (steps_ns[:-1] + steps_ns[1:]) // 2


class _Steps:
    """Steps 0, 1, ... of a busy time; `edges` part them."""

    def __init__(self, members: Sequence[BenchRequest], edges: Ints) -> None:
        self._members = members
        self._num_steps = len(edges) + 1
        self._step_of = [np.searchsorted(edges, request.piece_ns) for request in members]
        pieces = np.concatenate([request.piece_ns for request in members])
        steps = np.concatenate(self._step_of)
        order = np.lexsort((pieces, steps))
        by_step = np.split(
            pieces[order], np.searchsorted(steps[order], np.arange(1, self._num_steps))
        )
        # Every step has a token of the sequence that its edges were taken from.
        self._ends_ns = np.array([int(np.median(times)) for times in by_step])
        self.durations_ns = np.diff(self._ends_ns, prepend=self._ends_ns[0])

    def totals(self) -> Ints:
        """[num_steps, len(TOTALS)], as if every prompt was computed in one step."""
        columns = {name: np.zeros(self._num_steps) for name in TOTALS}
        # Of decodes: how many, and their contexts as lines over the step number.
        num, level, slope = np.zeros((3, self._num_steps + 1))
        for request, steps in zip(self._members, self._step_of, strict=True):
            first, last, prompt = int(steps[0]), int(steps[-1]), request.num_prompt_tokens
            columns["num_prefill_tokens"][first] += prompt
            columns["prefill_pairs"][first] += prompt * (prompt + 1) // 2
            columns["prefill_context_slots"][first] += prompt
            if last > first:
                # One a step, or as many more as came in fewer pieces.
                per_step = (request.num_output_tokens - 1) / (last - first)
                for at, sign in ((first + 1, 1), (last + 1, -1)):
                    num[at] += sign
                    level[at] += sign * (prompt - per_step * first)
                    slope[at] += sign * per_step
        num, level, slope = (np.cumsum(column)[:-1] for column in (num, level, slope))
        columns["num_decode_tokens"] = num
        columns["decode_context_slots"] = level + slope * np.arange(self._num_steps)
        return np.column_stack([columns[name] for name in TOTALS]).round().astype(np.int64)

    def problems(self, max_num_batched_tokens: int) -> dict[int, str]:
        """Steps about which something is unknown, and what."""
        problems = dict.fromkeys(np.flatnonzero(self.durations_ns <= 0).tolist(), _NO_TIME)
        for step in self._maybe_chunked(max_num_batched_tokens):
            problems[step] = _CHUNK
        for steps in self._step_of:
            for place in np.flatnonzero(np.diff(steps) > 1).tolist():
                problems |= dict.fromkeys(range(steps[place] + 1, steps[place + 1] + 1), _GAP)
        problems[0] = _NO_START
        return problems

    def _maybe_chunked(self, max_num_batched_tokens: int) -> Iterator[int]:
        """Steps in which a part of a prompt may have been computed.

        What is left of the budget goes to the head of the queue. If that holds its whole prompt, and yet
        the prompt was not computed, the head was refused for another reason, and got nothing.
        """
        totals = self.totals()
        budget = max_num_batched_tokens - totals[:, TOTALS.index("num_decode_tokens")]
        prompts = totals[:, TOTALS.index("num_prefill_tokens")]
        in_parts = np.where(prompts > budget, prompts, 0)  # tokens, some perhaps of earlier steps
        starts_ns = [self._ends_ns[0], *self._ends_ns[:-1]]  # of step 0: as late as can be
        waiting = sorted(range(len(self._members)), key=lambda i: self._members[i].start_ns)
        at = 0
        for step in range(self._num_steps):
            if in_parts[step]:
                yield step
            while at < len(waiting) and self._step_of[waiting[at]][0] <= step:
                at += 1
            if at == len(waiting):
                continue
            head = self._members[waiting[at]]
            least = budget[step] - prompts[step]
            most = least + in_parts[step]
            if head.start_ns <= starts_ns[step] and head.num_prompt_tokens > least and most > 0:
                yield step
                in_parts[self._step_of[waiting[at]][0]] += head.num_prompt_tokens
