"""The running groups, the steps in which they have to be looked at, and the totals of both pools."""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from operator import attrgetter

from ..closed_loop import queue_of
from ..decisions import Decisions
from ..ledger import Ledger
from ..plan import Limits
from ..prompts import UNKNOWN_PROMPT
from ..queue import WaitingQueue
from ..recorder import Recorder
from ..requests import RequestTable
from ..sequence import NEVER
from .group import Branch, Group
from .policy import VllmV0

by_arrival = attrgetter("arrival")


class Total:
    """A number that changes at times, and its exact integral."""

    def __init__(self) -> None:
        self.value = 0
        self._moment = 0

    def add(self, change: int, now_ns: int) -> None:
        self.value += change
        self._moment += change * now_ns

    def integral(self, now_ns: int) -> int:
        """Value x ns from time 0 to now."""
        return self.value * now_ns - self._moment


class GroupBatch:
    """All running groups gain a token in every decode step.

    So a group is looked at when its tables are full, which is every block's worth of decode steps, when its prompt's
    last block is first written, and when a branch ends. Beams change hands in every step.
    """

    def __init__(
        self,
        requests: RequestTable,
        policy: VllmV0,
        limits: Limits,
        recorder: Recorder,
        log: Decisions | None = None,
    ) -> None:
        self.requests = requests
        self.policy = policy
        self.limits = limits
        self.recorder = recorder
        self.queue: WaitingQueue[Group] = queue_of(requests, self._group)
        self.ledger = Ledger(policy.num_free_slots())
        self.host_ledger = Ledger(policy.host.num_blocks * policy.block_slots)
        # Entries of the block tables of the device, and blocks in them: what there would be without sharing, and is.
        self.entries, self.blocks = Total(), Total()
        self.sequences = Total()  # branches of the running groups, from their admission on
        self.loaded = (
            0,
            0,
            0,
            0,
        )  # integrals of these three and of 1 at the end of the loaded window
        self.paranoid = False
        self.step = 0
        self.decode_steps = 0
        self.running: list[Group] = []  # in order of arrival
        self._log = policy.log = log
        self._num_seqs = 0  # branches of the running groups
        self._context = 0  # committed tokens of these
        self._num_admissions = 0
        self._due: defaultdict[int, list[tuple[Group, int]]] = defaultdict(list)
        self._ends: defaultdict[int, list[tuple[Group, int, Branch]]] = defaultdict(list)
        self._newcomers: list[Group] = []  # since the last decode step, which ended then:
        self._decoded_ns = NEVER
        self._ready_ns = 0  # when the planned step can begin: what its plan does happens then
        self._num_copies = 0  # blocks that the planned step copies, and committed tokens in them:
        self._copied_slots = 0

    def _group(self, requests: RequestTable, row: int) -> Group:
        return Group(
            row,
            requests.arrival_ns[row],
            requests.num_prompt_tokens[row],
            requests.branch_outputs[row],
            requests.beam_width > 1,
            requests.prompts[row] if requests.prompts else UNKNOWN_PROMPT,
        )

    def _start(self, group: Group, committed: int) -> None:
        """A group runs: the next decode step is its own, too."""
        self._num_admissions += 1
        group.admission = self._num_admissions
        group.offset = committed - self.decode_steps
        group.live_step = self.decode_steps
        group.num_hit_tokens = 0
        insort(self.running, group, key=by_arrival)
        self._newcomers.append(group)
        self._num_seqs += len(group.branches)
        self._context += committed * len(group.branches)
        self._due[self.decode_steps].append((group, group.admission))
        for branch in group.branches:
            # The step that writes position E - 1 gives the last token.
            last_step = self.decode_steps + branch.end - committed - 1
            self._ends[last_step].append((group, group.admission, branch))

    def _stop(self, group: Group) -> None:
        """A group does not run any more. It has `known - 1` committed tokens in each branch."""
        committed = group.offset + self.decode_steps
        self._sync(group)
        self._count_tables(-group.num_entries, -group.num_blocks)
        if group in self._newcomers:
            self._newcomers.remove(group)
        else:
            group.last_token_ns = self._decoded_ns
        group.admission = NEVER
        group.known = committed + 1
        self.running.remove(group)
        self._num_seqs -= len(group.branches)
        self._context -= committed * len(group.branches)

    def _now_due(self) -> list[Group]:
        """Who has to be looked at before the next decode step, and has not been preempted since that was known."""
        due = self._due.get(self.decode_steps, ())
        return sorted((g for g, admission in due if g.admission == admission), key=by_arrival)

    def _pop_due(self) -> list[Group]:
        """The same, and they are looked at now."""
        due = self._now_due()
        self._due.pop(self.decode_steps, None)
        return due

    def _sync(self, group: Group) -> None:
        """Count the tokens that a running group has gained since somebody looked at it."""
        group.live_slots += (self.decode_steps - group.live_step) * len(group.branches)
        group.live_step = self.decode_steps

    def _extend(self, group: Group) -> None:
        """Blocks that a due group needs to write its next tokens."""
        size, committed = self.policy.block_slots, group.offset + self.decode_steps
        num_new, num_copies = self.policy.append(group, committed)
        num_blocks, first = num_new + num_copies, committed // size * size
        if group.fresh and len(group.branches) > 1:
            # From now on each sample writes into blocks of its own.
            _, _, useful = group.count(committed, size)
            useful -= group.useful_slots
        else:
            # Beams end together, and of samples all or none get a block.
            useful = sum(
                min(first + size, branch.end) - first for branch in group.branches[:num_blocks]
            )
        group.fresh = False
        group.num_blocks += num_blocks
        group.useful_slots += useful
        group.live_slots += num_copies * (committed - first)
        self._num_copies += num_copies
        self._copied_slots += num_copies * (committed - first)
        self._count_tables(num_new, num_blocks)
        self._account(useful, num_blocks)
        steps = 1 if group.is_beam else size - committed % size
        self._due[self.decode_steps + steps].append((group, group.admission))

    def _count_tables(self, num_entries: int, num_blocks: int) -> None:
        self.entries.add(num_entries, self._ready_ns)
        self.blocks.add(num_blocks, self._ready_ns)

    def _account(self, useful: int, num_blocks: int) -> None:
        """Blocks of the device were taken or given back."""
        slots, now_ns = num_blocks * self.policy.block_slots, self._ready_ns
        self.ledger.change(useful, slots, slots, now_ns)
        self._set_unheld(0, now_ns)

    def _account_own(self, useful: int, num_blocks: int, num_others: int) -> None:
        """The same of a request's blocks, of which `num_others` are another one's, too: full ones."""
        self._account(useful - num_others * self.policy.block_slots, num_blocks - num_others)

    def _set_unheld(self, external_slots: int, now_ns: int) -> None:
        """What nobody holds, from now on; `external_slots` of it are no use to the head of the queue."""
        self.ledger.set_cached(self.policy.num_cached_slots(), now_ns)
        self.ledger.set_free(self.policy.num_free_slots(), external_slots, now_ns)

    def _account_host(self, useful: int, num_blocks: int) -> None:
        """Blocks of the host were taken or given back."""
        slots, now_ns = num_blocks * self.policy.block_slots, self._ready_ns
        self.host_ledger.change(useful, slots, slots, now_ns)
        free_slots = self.policy.host.num_free_blocks * self.policy.block_slots
        self.host_ledger.set_free(free_slots, 0, now_ns)

    def _end_waiting(self) -> None:
        """Somebody who waited does not any more. If it was the last one, the loaded window ends here."""
        if self.queue.all_admitted and self.queue.head() is None and not self.policy.on_host:
            self.recorder.end_loaded_window(self.ledger.totals(self._ready_ns, self.step))
            self.loaded = self._integrals(self._ready_ns)

    def _integrals(self, now_ns: int) -> tuple[int, int, int, int]:
        totals = (self.entries, self.blocks, self.sequences)
        entries, blocks, sequences = (total.integral(now_ns) for total in totals)
        return entries, blocks, sequences, now_ns

    def _enter(self, group: Group) -> None:
        """A group counts as running from now on."""
        self.ledger.enter(1, self._ready_ns)
        self.sequences.add(len(group.branches), self._ready_ns)
