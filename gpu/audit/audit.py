"""The audit of a pool: at chosen steps, every slot against the decision log, and the parts against the recorder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kvtwin.sim.decisions import Decisions
from kvtwin.traces import Trace

from ..twin.content import ContentShape
from .claims import Claims, Flags, claims_of
from .contents import NOTHING, Codes, Layer, TokenIndex
from .findings import Findings
from .group_replay import GroupReplay
from .parts import PARTS, PARTS_OF_OTHERS, RULES, PoolRules, part_of_slots, recount
from .planned import Key, PlannedTokens, in_words
from .replay import Replay, StepWork
from .slot_checks import SlotChecks
from .tables import GONE, Table


@dataclass(frozen=True)
class LayerGroup:
    """Layers that have the same block tables, by number, in the order of their pools.

    `window`: tokens in front of which its tables have nothing, 0 if they have everything. `token_slots`: slots of a
    token by the recorder, of which a block has as many as the largest group's tokens take.
    """

    layers: tuple[int, ...]
    window: int = 0
    token_slots: int = 1


@dataclass(frozen=True)
class AuditSetting:
    """What is audited. `block_slots`: slots of what the log counts, a block or a single slot.

    A slot has one token, whatever the recorder's are. Without `groups` all layers have the same tables.
    """

    policy: str
    num_slots: int
    block_slots: int
    max_model_len: int
    max_tokens: int | None = None
    branch_outputs: Sequence[Sequence[int]] = ()  # by row, of requests with several sequences
    watermark: float = 0.0
    keeps_kv: bool = True
    reuses_prefixes: bool = False  # what a sequence leaves of its prompt may serve others
    reuses_answers: bool = False  # all that it leaves may
    whole_batch: bool = False  # finished members keep their memory until the last one ends
    groups: tuple[LayerGroup, ...] = ()


class Audit:
    """Follows a run step by step; says what it found in `findings`, and what it looked at in `counts`.

    It knows the trace, the decision log, the work of each step and the device's pools, and has its
    own idea of all that follows from them.
    """

    def __init__(
        self,
        trace: Trace,
        log: Decisions,
        setting: AuditSetting,
        shape: ContentShape,
        layers: Sequence[Layer],
        host_layers: Callable[[], Sequence[torch.Tensor]] = list,
    ) -> None:
        """`layers`: K and V pool of each layer of a group, [num_blocks, block_slots, kv_heads, head_dim].

        `host_layers` gives the host's of the moment, [num_blocks, 2, block_slots, kv_heads, head_dim].
        """
        self._setting = setting
        self._layers, self._host_layers = layers, host_layers
        groups = setting.groups or (LayerGroup(tuple(range(shape.num_layers))),)
        self._groups = groups
        device = str(layers[0][0].device)
        self._index = TokenIndex(shape, device, [group.layers for group in groups])
        self._planned = PlannedTokens(
            trace, setting.max_model_len, setting.max_tokens, setting.branch_outputs, len(groups)
        )
        self.findings = Findings()
        keeps_places = len(groups) > 1 or groups[0].window > 0
        self._replay = (GroupReplay if keeps_places else Replay)(
            log,
            setting.num_slots,
            setting.block_slots,
            self.findings,
            self._planned.ids,
            self._reusable_tokens,
        )
        self._checks = SlotChecks(layers, self._index, self._planned, self._replay, self.findings)
        self.counts = self._checks.counts
        self._step = 0

    def follow(self, step: int, work: StepWork) -> None:
        """To be called in every step, between its plan and its commit.

        `work`: (row, branch, first position, number of tokens) of each sequence, as it was computed.
        """
        self._step = step
        self._replay.follow()
        if not self._setting.keeps_kv:
            return
        work = [
            (row, branch + group, first, num)
            for row, branch, first, num in work
            for group in range(len(self._groups))
        ]
        self._replay.compute(step, work)
        for row, branch, first, _ in work:
            table = self._replay.tables.get((row, branch))
            if table is None:
                continue
            self._check_sight((row, branch), table, first)
            end = self._planned.end((row, branch))
            room = len(table.units) * self._setting.block_slots
            if table.written > end:
                self._say(
                    "past the end",
                    self._in_words((row, branch)),
                    f"at most {end}",
                    table.written,
                )
            if table.written > room:
                self._say("room", self._in_words((row, branch)), f"at most {room}", table.written)

    def _check_sight(self, key: Key, table: Table, first: int) -> None:
        """Whatever a window sees from position `first` of a table is in it."""
        if len(self._groups) == 1 and not self._groups[0].window:
            return
        window, size = self._groups[key[1]].window, self._setting.block_slots
        oldest, end = max(0, first - window + 1) // size if window else 0, -(-first // size)
        units = [*table.units[oldest:end], GONE]
        if len(units) <= end - oldest or GONE in units[:-1]:
            place = oldest + units.index(GONE)
            self._say(
                "sight",
                f"position {place * size} of {self._in_words(key)}",
                "a unit",
                "none",
            )

    def _in_words(self, key: Key) -> str:
        return in_words(key, self._replay.kind)

    def _reusable_tokens(self, row: int) -> int:
        """Leading tokens of a row that may serve others when it has left them."""
        if self._setting.reuses_answers:
            return self._setting.max_model_len
        return self._planned.num_reusable_tokens[row] if self._setting.reuses_prefixes else 0

    def _say(self, check: str, what: str, expected: object, found: object) -> None:
        self.findings.add(self._step, check, what, expected, found)

    def inspect(
        self,
        recorded: Mapping[str, int] | None = None,
        refused_row: int | None = None,
        tables: Mapping[Key, Codes] | None = None,
    ) -> None:
        """Every slot, once the step has been computed and before its commit.

        `recorded`: the recorder's slots of each part at this instant. `refused_row`: the head of the
        queue, if the last plan refused it for memory. `tables`: the block ids through which sequences
        were computed, as far as their contexts reach.
        """
        claims = claims_of(self._replay)
        codes = self._classify()
        checks, self._checks.step = self._checks, self._step
        holds = checks.held(claims, codes)
        checks.shared(claims)
        checks.host(claims_of(self._replay, host=True), self._host_layers())
        is_cached = checks.unheld(claims, codes)
        self._check_tables(tables or {})
        ends = self._check_finished()
        self.counts["num_instants"] += 1
        self.counts["num_slots_classified"] += len(codes)
        if recorded is not None:
            self._check_parts(claims, holds, is_cached, ends, recorded, refused_row)

    def finish(self) -> None:
        """After the last commit: nobody holds anything, and all is poison or cached (INV-8)."""
        self._replay.follow()
        for key, table in self._replay.tables.items():
            self._say(
                "leak",
                self._in_words(key),
                "nothing held at the end",
                f"{len(table.units)} units",
            )
        claims = claims_of(self._replay)
        self._checks.shared(claims)
        self._checks.unheld(claims, self._classify())

    def _classify(self) -> Codes:
        replay, has_groups = self._replay, len(self._groups) > 1
        of_slot = np.repeat(replay.group_of, self._setting.block_slots)
        for group in range(len(self._groups)):
            is_left = replay.left != NOTHING
            if has_groups:
                is_left &= of_slot == group
            keys = [key for key in replay.tables if key[1] == group or not has_groups]
            expected = [replay.tokens_of(key) for key in keys]
            self._index.learn(np.concatenate([replay.left[is_left], *expected]), group)
        return self._index.classify(self._layers)

    def _check_tables(self, tables: Mapping[Key, Codes]) -> None:
        """Kernels have read what the log says a sequence holds."""
        self.counts["tables"] += len(tables)
        for key, read in tables.items():
            units = self._replay.tables[key].units if key in self._replay.tables else []
            differing = [
                at
                for at, unit in enumerate(read.tolist())
                if units[at : at + 1] not in ([unit], [GONE])
            ]
            for at in differing[:1]:
                expected = units[at] if at < len(units) else "nothing"
                self._say("table", f"entry {at} of {self._in_words(key)}", expected, read[at])

    def _check_finished(self) -> list[int]:
        """E of each owner, 0 of those that have finished; they hold memory in a static batch alone."""
        tables = self._replay.tables
        ends = [self._planned.end(key) for key in tables]
        over = [table.before >= end for table, end in zip(tables.values(), ends, strict=True)]
        pairs = list(zip(tables.items(), over, strict=True))
        batches = {table.since for (_, table), is_over in pairs if not is_over}
        for (key, table), is_over in pairs:
            if is_over and not (self._setting.whole_batch and table.since in batches):
                held = f"{len(table.units)} units"
                self._say("leak", self._in_words(key), "nothing held by who has finished", held)
        return [0 if is_over else end for end, is_over in zip(ends, over, strict=True)]

    def _sizes(self) -> Codes:
        """Slots by the recorder of a token in each slot."""
        sizes = np.array([group.token_slots for group in self._groups])
        if len(sizes) == 1:
            return np.repeat(sizes, self._setting.num_slots)
        return np.repeat(sizes[self._replay.group_of], self._setting.block_slots)

    def _check_parts(
        self,
        claims: Claims,
        holds: Flags,
        is_cached: Flags,
        ends: list[int],
        recorded: Mapping[str, int],
        refused_row: int | None,
    ) -> None:
        setting, planned, tables = self._setting, self._planned, self._replay.tables
        rules = RULES.get(setting.policy, PoolRules())
        asked = [
            rules.asked(
                planned.num_prompt_tokens[row],
                planned.num_output_tokens[row],
                setting.max_model_len,
                len(table.units) * setting.block_slots,
            )
            for (row, _), table in tables.items()
        ]
        before = [table.before for table in tables.values()]
        refused = None
        if refused_row is not None:
            prompt = planned.num_prompt_tokens[refused_row]
            refused = refused_row, max(prompt, self._replay.most_known.get(refused_row, 0))
        watermark_slots = (
            int(setting.watermark * (setting.num_slots // setting.block_slots))
            * setting.block_slots
        )
        counted = recount(
            part_of_slots(claims, holds, before, ends, asked, setting.num_slots),
            is_cached,
            self._sizes(),
            max(group.token_slots for group in self._groups),
            setting.policy,
            planned,
            setting.max_model_len,
            setting.block_slots,
            watermark_slots,
            refused,
        )
        for names in PARTS if setting.policy in RULES else PARTS_OF_OTHERS:
            found = sum(counted[name] for name in names)
            expected = sum(recorded[name] for name in names)
            if found != expected:
                self._say("parts", " + ".join(names), f"{expected} slots by the recorder", found)
