"""Whether slots hold what they must."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from .claims import Claims, Flags
from .contents import MIXED, NOTHING, POISON, Codes, Layer, TokenIndex
from .findings import Findings
from .planned import PlannedTokens
from .replay import Replay


class SlotChecks:
    """Compares what slots were found to hold, as ids or codes of `index`, with the claims on them."""

    def __init__(
        self,
        layers: Sequence[Layer],
        index: TokenIndex,
        planned: PlannedTokens,
        replay: Replay,
        findings: Findings,
    ) -> None:
        self._layers, self._index, self._planned = layers, index, planned
        self._replay, self._findings = replay, findings
        self.counts: Counter[str] = Counter()
        self.step = 0

    def _say(self, check: str, what: str, expected: object, found: object) -> None:
        self._findings.add(self.step, check, what, expected, found)

    def _found(self, slot: int, code: int, layers: Sequence[Layer] = ()) -> str:
        if self._findings.is_full:
            return f"code {code}"
        if code == POISON:
            return "poison"
        if code != MIXED:
            return self._planned.where(code)
        pieces = []
        for layer, kind, token, place in self._index.pieces_of(layers or self._layers, slot):
            if place >= 0:
                what = (
                    f"{('K', 'V')[place % 2]} of layer {place // 2} of {self._planned.where(token)}"
                )
            else:
                what = "poison" if token == POISON else "no token's"
            pieces.append(f"layer {layer} {kind}: {what}")
        return "; ".join(pieces)

    def held(self, claims: Claims, codes: Codes) -> Flags:
        """INV-7: what was computed is there; where nothing was, poison is, unless another owner wrote.

        Returns which entries' slots hold their token.
        """
        holds = codes[claims.slots] == claims.tokens
        is_written = claims.tokens != NOTHING
        written = np.zeros(len(codes), dtype=bool)
        written[claims.slots[is_written]] = True
        self.counts["live"] += int(written.sum())
        for entry in np.flatnonzero(is_written & ~holds).tolist():
            slot = int(claims.slots[entry])
            check = "source" if claims.is_source[entry] else "live"
            self._say(
                check,
                f"slot {slot}",
                claims.in_words(entry),
                self._found(slot, int(codes[slot])),
            )
        is_unwritten = ~is_written & ~written[claims.slots]
        self.counts["unwritten"] += len(np.unique(claims.slots[is_unwritten]))
        for entry in np.flatnonzero(is_unwritten & (codes[claims.slots] != POISON)).tolist():
            slot = int(claims.slots[entry])
            what = f"slot {slot}, granted for {claims.in_words(entry)}"
            self._say("unwritten", what, "poison", self._found(slot, int(codes[slot])))
        return holds & is_written

    def host(self, claims: Claims, pools: Sequence[torch.Tensor]) -> None:
        """What has been swapped out is in the host's memory."""
        size = self._replay.block_slots
        blocks = np.unique(claims.slots // size)
        if not len(blocks):
            return
        layers = [(layer[blocks, 0].contiguous(), layer[blocks, 1].contiguous()) for layer in pools]
        places = np.searchsorted(blocks, claims.slots // size) * size + claims.slots % size
        found = self._index.classify(layers)[places]
        is_written = claims.tokens != NOTHING
        self.counts["host"] += len(np.unique(claims.slots[is_written]))
        for entry in np.flatnonzero(is_written & (found != claims.tokens)).tolist():
            what, code = f"host slot {claims.slots[entry]}", int(found[entry])
            self._say(
                "host", what, claims.in_words(entry), self._found(places[entry], code, layers)
            )

    def shared(self, claims: Claims) -> None:
        """Whoever has a slot has it for the same position."""
        order = np.argsort(claims.slots, kind="stable")
        slots, positions = claims.slots[order], claims.positions[order]
        same = slots[1:] == slots[:-1]
        self.counts["shared"] += len(np.unique(slots[1:][same]))
        for at in np.flatnonzero(same & (positions[1:] != positions[:-1])).tolist():
            one, other = (claims.in_words(order[i]) for i in (at, at + 1))
            self._say("shared", f"slot {slots[at]}", one, other)

    def unheld(self, claims: Claims, codes: Codes) -> Flags:
        """What nobody holds is poison, or what its last holder left for others to use.

        Returns which slots hold the latter.
        """
        is_held = np.zeros(len(codes), dtype=bool)
        is_held[claims.slots] = True
        left = self._replay.left
        is_cached = ~is_held & (left != NOTHING) & (codes == left)
        self.counts["cached"] += int(is_cached.sum())
        self.counts["free"] += int((~is_held & ~is_cached).sum())
        for slot in np.flatnonzero(~is_held & ~is_cached & (codes != POISON)).tolist():
            expected = "poison"
            if left[slot] != NOTHING:
                expected += f" or {self._planned.where(int(left[slot]))}"
            self._say("freed", f"slot {slot}", expected, self._found(slot, int(codes[slot])))
        return is_cached
