"""Running totals of the pool, and their exact integrals over time."""

from __future__ import annotations

from operator import sub

# Why the head of the queue is not admitted: no memory for it, a limit of that name, or a batch that has to end first.
MEMORY, MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS, BATCH = WAIT_REASONS = (
    "memory",
    "max_num_seqs",
    "max_num_batched_tokens",
    "batch",
)
# What the recorder is told, cumulative since time 0. `live` to `running` are integrals (slots x ns, or sequences x ns);
# `idle` and `waits_for_...` are the ns in which nobody ran or waited, and in which the head of the queue waited so.
FIELDS = (
    "duration_ns",
    "live",
    "useful",
    "asked",
    "granted",
    "free",
    "external",
    "cached",
    "running",
    "num_steps",
    "num_prefill_tokens",
    "num_decode_tokens",
    "num_preemptions",
    "idle",
    *(f"waits_for_{reason}" for reason in WAIT_REASONS),
)


class Ledger:
    """Each total with its moment, the sum of (change x time of the change).

    A total that has value V at time t and moment M has the integral V x t - M since time 0. So a total costs
    something when it changes, and nothing while time passes.

    `useful`: granted slots below E of their sequence. `asked` and `granted` include the sources of moves in progress.
    Growths are not in these three: they add `grown` to each, less the `tail` of `useful` that nobody will fill.
    `free` is what the allocator's free list says, `external` the part of it that did not serve the head of the queue.
    `cached` is what it says that nobody holds although the content is reusable.
    """

    def __init__(self, free_slots: int) -> None:
        self.live = self.live_moment = 0
        self.useful = self.useful_moment = 0
        self.asked = self.asked_moment = 0
        self.granted = self.granted_moment = 0
        self.free = self.free_moment = 0
        self.external = self.external_moment = 0
        self.cached = self.cached_moment = 0
        self.grown = self.grown_moment = 0
        self.tail = self.tail_moment = 0
        self.running = self.running_moment = self.most_running = 0
        self.num_prefill_tokens = 0
        self.num_decode_tokens = 0
        self.num_preemptions = 0
        self.recomputed_tokens = 0
        self.idle_ns = 0
        self.waits_for: str | None = None  # one of WAIT_REASONS; None: nobody waits
        self._waited_ns = dict.fromkeys(WAIT_REASONS, 0)
        self.free = self.least_free = free_slots

    def change(self, useful: int, asked: int, granted: int, now_ns: int) -> None:
        """Slots were granted, or taken back."""
        self.useful += useful
        self.useful_moment += useful * now_ns
        self.asked += asked
        self.asked_moment += asked * now_ns
        self.granted += granted
        self.granted_moment += granted * now_ns

    def grow(self, grown: int, tail: int, now_ns: int) -> None:
        """Sequences have grown by slots that were asked for; nobody will fill the tail of them."""
        self.grown += grown
        self.grown_moment += grown * now_ns
        self.tail += tail
        self.tail_moment += tail * now_ns

    @property
    def granted_slots(self) -> int:
        """Slots granted, growths included."""
        return self.granted + self.grown

    def commit(self, num_tokens: int, now_ns: int) -> None:
        """Tokens became live."""
        self.live += num_tokens
        self.live_moment += num_tokens * now_ns

    def enter(self, num_seqs: int, now_ns: int) -> None:
        """Sequences were admitted."""
        self.running += num_seqs
        self.running_moment += num_seqs * now_ns

    def note_running(self) -> None:
        """A step runs with whoever has entered and not left."""
        if self.running > self.most_running:
            self.most_running = self.running

    def leave(self, live: int, useful: int, asked: int, granted: int, now_ns: int) -> None:
        """A sequence stopped running, and this much came to an end with it."""
        self.running -= 1
        self.running_moment -= now_ns
        self.live -= live
        self.live_moment -= live * now_ns
        self.useful -= useful
        self.useful_moment -= useful * now_ns
        self.asked -= asked
        self.asked_moment -= asked * now_ns
        self.granted -= granted
        self.granted_moment -= granted * now_ns

    def set_free(self, free_slots: int, external_slots: int, now_ns: int) -> None:
        """What the free list holds from now on."""
        self.free_moment += (free_slots - self.free) * now_ns
        self.free = free_slots
        if free_slots + self.cached < self.least_free:
            self.least_free = free_slots + self.cached
        self.external_moment += (external_slots - self.external) * now_ns
        self.external = external_slots

    def set_cached(self, cached_slots: int, now_ns: int) -> None:
        """What nobody holds, but may be used again, from now on. To be said before `set_free`."""
        self.cached_moment += (cached_slots - self.cached) * now_ns
        self.cached = cached_slots

    def wait_for(self, reason: str | None, now_ns: int) -> None:
        """Why the head of the queue is not admitted, from now on; None if nobody waits."""
        if self.waits_for is not None:
            self._waited_ns[self.waits_for] += now_ns
        if reason is not None:
            self._waited_ns[reason] -= now_ns
        self.waits_for = reason

    def per_ns(self) -> tuple[int, ...]:
        """By how much each of FIELDS grows in every ns from now on: the totals as they stand; counts do not grow."""
        return tuple(map(sub, self.totals(1, 0), self.totals(0, 0)))

    def totals(self, now_ns: int, num_steps: int) -> tuple[int, ...]:
        """FIELDS at `now_ns`, which is not before the latest change."""
        grown = self.grown * now_ns - self.grown_moment
        tail = self.tail * now_ns - self.tail_moment
        return (
            now_ns,
            self.live * now_ns - self.live_moment,
            self.useful * now_ns - self.useful_moment + grown - tail,
            self.asked * now_ns - self.asked_moment + grown,
            self.granted * now_ns - self.granted_moment + grown,
            self.free * now_ns - self.free_moment,
            self.external * now_ns - self.external_moment,
            self.cached * now_ns - self.cached_moment,
            self.running * now_ns - self.running_moment,
            num_steps,
            self.num_prefill_tokens,
            self.num_decode_tokens,
            self.num_preemptions,
            self.idle_ns,
            *(
                num_ns + now_ns if reason == self.waits_for else num_ns
                for reason, num_ns in self._waited_ns.items()
            ),
        )
