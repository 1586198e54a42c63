"""What each slot of a pool must hold at an instant, as the replayed tables have it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .contents import NOTHING, Codes
from .planned import Key, in_words
from .replay import Replay
from .tables import in_host

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Claims:
    """One entry for each (sequence, position) that has a slot, so several where a slot is shared.

    Sources of copies in progress have entries of their own, the last ones.
    """

    keys: list[Key]
    slots: Codes
    owners: Codes  # numbers in `keys`
    positions: Codes
    tokens: Codes  # id of the token that has been computed or found there, else NOTHING
    is_source: Flags
    is_arriving: Flags  # computed or copied there in this step, or for as long as a transfer lasts
    kind: str  # of what the second number of a key counts, see `in_words`

    def in_words(self, entry: int) -> str:
        """An entry, in a message."""
        key = self.keys[self.owners[entry]]
        return f"{in_words(key, self.kind)} position {self.positions[entry]}"


def claims_of(replay: Replay, host: bool = False) -> Claims:
    """The claims on the device's pool, or on the host's, once the step in progress has been computed."""
    keys = list(replay.tables)
    numbers = {key: number for number, key in enumerate(keys)}
    held = [(key, table.units, 0, table.written) for key, table in replay.tables.items()]
    sources = [
        (key, range(first, first + num), place, replay.tables[key].before)
        for key, first, num, place in replay.pending
        if key in replay.tables
    ]
    pieces = [np.zeros((4, 0), dtype=np.int64)]
    for key, units, place, num_written in held + sources:
        tokens = replay.tokens_of(key)[:num_written]
        pieces.append(_entries(numbers[key], units, place, tokens, replay.block_slots, host))
    slots, owners, positions, tokens = np.concatenate(pieces, axis=1)
    num_held = sum(piece.shape[1] for piece in pieces[: len(held) + 1])
    copied_rows = {source.key[0] for source in replay.pending}
    is_copied = np.array([row in copied_rows for row, _ in keys], dtype=bool)[owners]
    is_source = np.arange(len(slots)) >= num_held
    is_arriving = (is_copied & ~is_source) | np.isin(slots // replay.block_slots, replay.copied)
    is_arriving |= np.isin(slots, _computed_slots(replay))
    kind = replay.kind
    return Claims(keys, slots, owners, positions, tokens, is_source, is_arriving, kind)


def _computed_slots(replay: Replay) -> Codes:
    """Slots that the step in progress has written."""
    pieces = [np.zeros(0, dtype=np.int64)]
    for row, branch, first, num in replay.computed:
        if (row, branch) in replay.tables:
            units = np.array(replay.tables[row, branch].units, dtype=np.int64)
            places, offsets = np.divmod(np.arange(first, first + num), replay.block_slots)
            inside = places < len(units)
            pieces.append(units[places[inside]] * replay.block_slots + offsets[inside])
    return np.concatenate(pieces)


def _entries(
    owner: int, units: Sequence[int], place: int, tokens: Codes, size: int, host: bool
) -> Codes:
    """Slots, owners, positions and tokens of units from `place` of a table on, of the pool in question."""
    ids = np.array(units, dtype=np.int64)
    ids = in_host(ids) if host else ids
    slots = (ids[:, None] * size + np.arange(size)).ravel()
    positions = np.arange(place * size, place * size + len(slots))
    found = np.full(len(slots), NOTHING, dtype=np.int64)
    written = tokens[place * size :][: len(slots)]
    found[: len(written)] = written
    entries = np.stack([slots, np.full(len(slots), owner), positions, found])
    return entries[:, slots >= 0]
