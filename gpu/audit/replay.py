"""Who holds which slot for which position, followed from the decision log and the work of each step alone."""

from collections import defaultdict
from collections.abc import Callable, Iterable

import numpy as np

from kvtwin.sim.decisions import Decisions

from .contents import NOTHING, Codes
from .findings import Findings
from .planned import Key, in_words
from .tables import GONE, Source, Table, in_host

StepWork = Iterable[tuple[int, int, int, int]]  # (row, branch, first position, number of tokens)


class Replay:
    """Tables and reference counts.

    `block_slots`: slots of one unit in which the log counts, the block size or 1. `tokens` gives the
    ids of the tokens of a sequence, `reusable` how many leading ones of a row may serve others.
    """

    kind = "branch"  # of what the second number of a key counts, in a message

    def __init__(
        self,
        log: Decisions,
        num_slots: int,
        block_slots: int,
        findings: Findings,
        tokens: Callable[[Key], Codes],
        reusable: Callable[[int], int],
    ) -> None:
        self._log = log
        self._at = 0  # entries of the log that have been followed
        self._findings = findings
        self._tokens = tokens
        self._reusable = reusable
        self.block_slots = block_slots
        # Branch or group that had a unit last.
        self.group_of = np.zeros(num_slots // block_slots, dtype=np.int64)
        self.tables: dict[Key, Table] = {}
        self._refs = np.zeros(num_slots // block_slots, dtype=np.int64)
        self._host_refs = np.zeros(0, dtype=np.int64)  # grows with the blocks that are named
        self._shrunk: set[Key] = set()  # whose tables have lost units
        self._inherited: dict[Key, Codes] = {}  # tokens of sequences that went on from others
        # Sources of copies in progress.
        self.pending: list[Source] = []
        self.computed: list[tuple[int, int, int, int]] = []  # work of the step in progress
        self.copied: list[int] = []  # units that a copy-on-write of the step in progress fills
        # Tokens of use to others that were left where nobody holds the slot, else NOTHING: [num_slots].
        self.left = np.full(num_slots, NOTHING, dtype=np.int64)
        # Tokens that a row had, generated ones included, when its memory was taken.
        self.most_known: dict[int, int] = {}

    def tokens_of(self, key: Key) -> Codes:
        """Ids of the tokens of a sequence by position, those of its ancestors included."""
        if key in self._inherited:
            return self._inherited[key]
        return self._tokens(key)

    def follow(self) -> None:
        """Follow what the log has more than before."""
        log = self._log
        self.copied.clear()
        for at in range(self._at, len(log.steps)):
            key = log.rows[at], log.branches[at]
            do = getattr(self, f"_{log.actions[at]}")
            do(log.steps[at], key, log.firsts[at], log.nums[at], log.sources[at])
        self._at = len(log.steps)
        self._settle()

    def _settle(self) -> None:
        """The log has been followed: tables close up."""
        for key in self._shrunk:
            if key in self.tables:
                units = self.tables[key].units
                units[:] = (unit for unit in units if unit != GONE)
        self._shrunk.clear()

    def compute(self, step: int, work: StepWork) -> None:
        """A step has computed these tokens. Each position once (INV-4)."""
        of_row: defaultdict[int, list[Table]] = defaultdict(list)
        for key, table in self.tables.items():
            table.before = table.written
            of_row[key[0]].append(table)
        self.computed = list(work)
        for row, branch, first, num in self.computed:
            table = self.tables.get((row, branch))
            if table is None:
                self._say(step, "no table", (row, branch), "computes nothing", f"from {first}")
                continue
            if first != table.written and table.written:
                self._say(step, "order", (row, branch), f"position {table.written}", first)
            table.written = first + num
            table.before = table.before or first  # found in the pool
            self._tell_others(of_row[row], table)

    def _tell_others(self, tables: list[Table], table: Table) -> None:
        """What one sequence of a request computes, those that share its first units have, too."""
        for other in tables:
            if other is table:
                continue
            pairs = zip(table.units, other.units, strict=False)
            num_common = next((at for at, (one, two) in enumerate(pairs) if one != two), None)
            if num_common is None:
                num_common = min(len(table.units), len(other.units))
            num_written = min(num_common * self.block_slots, table.written)
            other.written = max(other.written, num_written)

    def _say(self, step: int, check: str, key: Key, expected: object, found: object) -> None:
        self._findings.add(step, check, in_words(key, self.kind), expected, found)

    def _take(self, step: int, key: Key, refs: Codes, first: int, num: int) -> bool:
        """Free units get their first holder."""
        if not 0 <= first < first + num <= len(refs):
            self._say(step, "outside", key, f"below {len(refs)}", f"{num} units from {first}")
            return False
        held = (first + np.flatnonzero(refs[first : first + num])).tolist()
        if refs is self._refs:
            held += [
                s.first for s in self.pending if s.first < first + num and first < s.first + s.num
            ]
            self.left[self.slots(first, num)] = NOTHING
        if held:
            self._say(step, "double grant", key, f"unit {held[0]} free", self._holders(held[0]))
        refs[first : first + num] += 1
        return True

    def slots(self, first: int, num: int) -> slice:
        """Slots of a run of units."""
        return slice(first * self.block_slots, (first + num) * self.block_slots)

    def _holders(self, unit: int) -> str:
        keys = [key for key, table in self.tables.items() if unit in table.units]
        keys += [s.key for s in self.pending if s.first <= unit < s.first + s.num]
        return f"held by {', '.join(in_words(key, self.kind) for key in keys) or 'nobody'}"

    def _begin(self, row: int) -> None:
        """A request is admitted, or goes on with what others have."""

    def _end(self, key: Key) -> None:
        written = self.tables.pop(key).written
        self.most_known[key[0]] = max(self.most_known.get(key[0], 0), written + 1)

    def _grant(self, step: int, key: Key, first: int, num: int, source: int) -> None:
        self._begin(key[0])
        self._join(step, key, first, num)

    def _join(self, step: int, key: Key, first: int, num: int) -> None:
        if self._take(step, key, self._refs, first, num):
            self.tables.setdefault(key, Table(since=step)).units += range(first, first + num)
            self.group_of[first : first + num] = key[1]

    def _extend(self, step: int, key: Key, first: int, num: int, source: int) -> None:
        if any(s.first < first + num and first < s.first + s.num for s in self.pending):
            self.pending.clear()  # compaction that moves nothing packs over the sources all the same
        self._join(step, key, first, num)

    def _share(self, step: int, key: Key, first: int, num: int, source: int) -> None:
        """Units that others hold, or that somebody left, join a table.

        A sequence has in common with another of its request whatever that one has computed there.
        """
        self._begin(key[0])
        table, size = self.tables.setdefault(key, Table(since=step)), self.block_slots
        for other, parent in self.tables.items():
            if other[0] == key[0] and other != key and first in parent.units:
                place = parent.place_of(first)
                begin, end = place * size, min((place + num) * size, parent.written)
                if begin < end:
                    mine = self._inherited.setdefault(key, self._tokens(key).copy())
                    mine[begin:end] = self.tokens_of(other)[begin:end]
                    table.written = max(table.written, end)
                break
        self._refs[first : first + num] += 1
        self.left[self.slots(first, num)] = NOTHING
        table.units += range(first, first + num)
        self.group_of[first : first + num] = key[1]

    def _find(self, step: int, key: Key, first: int, num: int) -> int | None:
        """Place of a run in the table of a sequence."""
        units = self.tables[key].units if key in self.tables else []
        at = units.index(first) if first in units else 0
        if units[at : at + num] == list(range(first, first + num)):
            return at
        held = f"{len(units)} others" if key in self.tables else "no table"
        self._say(step, "not held", key, f"{num} units from {first}", held)
        return None

    def _drop(self, key: Key, at: int, num: int) -> None:
        """One holder less of units of a table; what the last holder leaves may be of use."""
        table = self.tables[key]
        for place, unit in enumerate(table.units[at : at + num], at):
            if unit < GONE:
                self._host_refs[in_host(unit)] -= 1
                continue
            self._refs[unit] -= 1
            self._leave(key, place, unit)
        table.units[at : at + num] = [GONE] * num
        self._shrunk.add(key)

    def _leave(self, key: Key, place: int, unit: int) -> None:
        """A sequence had a unit at this place of its table. If nobody has it now, what is in it may be of use."""
        size, end = self.block_slots, min(self.tables[key].written, self._reusable(key[0]))
        if not self._refs[unit] and place * size < end:
            tokens = self.tokens_of(key)[place * size : min((place + 1) * size, end)]
            self.left[unit * size :][: len(tokens)] = tokens

    def _free(self, step: int, key: Key, first: int, num: int, source: int) -> None:
        at = self._find(step, key, first, num)
        if at is None:
            return
        self._drop(key, at, num)
        if all(unit == GONE for unit in self.tables[key].units):
            self._emptied(key)

    def _emptied(self, key: Key) -> None:
        """A table has lost its last unit."""
        self._end(key)

    def _move(self, step: int, key: Key, first: int, num: int, source: int) -> None:
        """A sequence's run goes elsewhere: with more room, by a copy; or as it is, by compaction."""
        units = self.tables[key].units if key in self.tables else []
        if not units or units != list(range(units[0], units[0] + len(units))):
            self._say(step, "not held", key, "one run to move", f"{len(units)} units")
            return
        if not 0 <= first <= len(self._refs) - num:
            self._say(step, "outside", key, f"below {len(self._refs)}", f"{num} units from {first}")
            return
        self._refs[units] -= 1
        if num == len(units):
            # Runs slide together over each other's old places, and over sources of earlier copies:
            # who holds what shows when all have moved.
            self.pending.clear()
            self._refs[first : first + num] += 1
            self.left[self.slots(first, num)] = NOTHING
        else:
            self.pending.append(Source(key, units[0], len(units), 0))
            self._take(step, key, self._refs, first, num)
        units[:] = range(first, first + num)

    def _vacate(self, step: int, key: Key, first: int, num: int, source: int) -> None:
        self._end_copy(step, key, first, num)

    def _vacate_host(self, step: int, key: Key, first: int, num: int, source: int) -> None:
        self._end_copy(step, key, in_host(first), num)

    def _end_copy(self, step: int, key: Key, first: int, num: int) -> None:
        for copied in self.pending:
            if copied.key[0] == key[0] and copied[1:3] == (first, num):
                self.pending.remove(copied)
                if first >= 0 and copied.key in self.tables:
                    for at in range(num):
                        self._leave(copied.key, copied.place + at, first + at)
                return
        self._say(step, "not held", key, f"a copy from unit {first}", f"{len(self.pending)} others")

    def _copy(self, step: int, key: Key, first: int, num: int, source: int) -> None:
        """Copy-on-write: `first` takes the place of `source` in the table, and its content."""
        at = self._find(step, key, source, num)
        if at is None or not self._take(step, key, self._refs, first, num):
            return
        if self._refs[source] < 2:
            self._say(step, "copy", key, f"unit {source} shared", self._holders(source))
        self._refs[source : source + num] -= 1
        self.tables[key].units[at : at + num] = range(first, first + num)
        self.copied += range(first, first + num)

    def _swap_out(self, step: int, key: Key, first: int, num: int, source: int) -> None:
        self._swap(step, key, source, in_host(first))

    def _swap_in(self, step: int, key: Key, first: int, num: int, source: int) -> None:
        self._swap(step, key, in_host(source), first)

    def _swap(self, step: int, key: Key, source: int, target: int) -> None:
        """A block goes to the other memory; all tables of the request that have it follow."""
        if self._find(step, key, source, 1) is None:
            return
        place = self.tables[key].place_of(source)
        new_blocks = max(in_host(target) + 1 - len(self._host_refs), 0)
        self._host_refs = np.pad(self._host_refs, (0, new_blocks))
        refs, unit = (self._host_refs, in_host(target)) if target < 0 else (self._refs, target)
        old_refs, old = (self._host_refs, in_host(source)) if source < 0 else (self._refs, source)
        if not self._take(step, key, refs, unit, 1):
            return
        tables = [table for other, table in self.tables.items() if other[0] == key[0]]
        tables = [table for table in tables if source in table.units]
        for table in tables:
            table.units[table.units.index(source)] = target
        refs[unit] += len(tables) - 1
        old_refs[old] -= len(tables)
        # What others have found of it stays theirs.
        if old_refs[old] and (source < 0 or not self._reusable(key[0])):
            self._say(
                step, "swap", key, f"block {old} in no table", f"in {old_refs[old]} of others"
            )
        self.pending.append(Source(key, source, 1, place))
