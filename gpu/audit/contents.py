"""Which token each slot of a pool holds, read from what lies on the device and from nothing else."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from ..twin.content import ContentShape, Ids, TokenContent
from .planned import in_group
from .poison import is_poison, poison_word, words_of

Layer = tuple[torch.Tensor, torch.Tensor]  # K and V pool
Codes = npt.NDArray[np.int64]

# In place of a token's id, which is one of 2**64 (see `TokenIds`).
POISON = -1
MIXED = -2  # no token in all layers and heads, and not poison in all either
NOTHING = -3  # no token is expected

_KINDS = ("key", "value")
_SEED = 20231023
_CHUNK_ELEMENTS = 1 << 22


class TokenIndex:
    """Tokens that a slot may hold, by what their K and V look like.

    What is compared are fingerprints of 64 bits of each layer's K and V, all heads together; slots
    that differ have the same one with a probability below 2**-32 (multilinear hashing with fixed
    random factors). The expected fingerprints come from the definition of the content, not from
    anything that was executed.
    """

    def __init__(
        self, shape: ContentShape, device: str, groups: Sequence[Sequence[int]] = ()
    ) -> None:
        """`groups`: layers of `shape` that have the same block tables, in the order of their pools.

        A slot is one group's at a time: pools beyond the layers of its group must be poison. Without them all
        layers are one group.
        """
        self._groups = groups or (range(shape.num_layers),)
        self._num_places = max(map(len, self._groups))
        self._shape = shape
        self._device = device
        self._content = TokenContent(shape, device)
        self._ids: Ids = np.zeros(0, dtype=np.int64)  # sorted
        # [number of ids, 2 x pools]: K and V of a group's layer 0, of its layer 1, ...
        self._prints: Codes = np.zeros((0, 2 * self._num_places), dtype=np.int64)
        self._by_print: Codes = np.zeros(0, dtype=np.int64)  # places of ids, sorted by layer 0's K

    def learn(self, ids: Ids, group: int = 0) -> None:
        """From now on these tokens are found, too, in slots of a group, given as its codes (`in_group`)."""
        new = np.setdiff1d(ids, self._ids)
        if not len(new):
            return
        assert not np.isin(new, (POISON, MIXED, NOTHING)).any(), "an id that stands for no token"
        shape = self._shape
        step = max(1, _CHUNK_ELEMENTS // (shape.num_layers * shape.num_kv_heads * shape.head_dim))
        prints = [self._expected(new[at : at + step], group) for at in range(0, len(new), step)]
        known = np.concatenate([self._ids, new])
        order = np.argsort(known)
        self._ids = known[order]
        self._prints = np.concatenate([self._prints, *prints])[order]
        self._by_print = np.argsort(self._prints[:, 0])
        ordered = self._prints[self._by_print, 0]
        assert (ordered[1:] != ordered[:-1]).all(), "two tokens have the same K in layer 0"

    def _expected(self, codes: Ids, group: int) -> Codes:
        ids = in_group(codes, -group)
        on_device = torch.from_numpy(ids).to(self._device)
        columns = []
        for layer in self._groups[group]:
            for kind in _KINDS:
                rows = self._content.of(on_device, kind, slice(layer, layer + 1))
                words = rows.reshape(len(ids), -1).view(torch.int64)
                columns.append(_fingerprints(words).cpu().numpy())
        poisoned = torch.full_like(words[:1], poison_word(self._shape.dtype))
        padding = np.repeat(_fingerprints(poisoned).cpu().numpy(), len(ids))
        columns += [padding] * (2 * self._num_places - len(columns))
        return np.stack(columns, axis=1)

    def classify(self, layers: Sequence[Layer]) -> Codes:
        """Code of the token, POISON or MIXED, of each slot: [num_slots].

        `layers`: the pools of each layer, contiguous, [num_blocks, block_size, kv_heads, head_dim].
        """
        prints = _prints_of(layers)
        codes = np.full(len(prints), MIXED, dtype=np.int64)
        if len(self._ids):
            ordered = self._prints[self._by_print, 0]
            at = np.searchsorted(ordered, prints[:, 0]).clip(max=len(ordered) - 1)
            places = self._by_print[at]
            is_token = (self._prints[places] == prints).all(axis=1)
            codes[is_token] = self._ids[places[is_token]]
        poisoned = torch.ones(len(prints), dtype=torch.bool, device=layers[0][0].device)
        for pools in layers:
            for pool in pools:
                poisoned &= is_poison(pool)
        codes[poisoned.cpu().numpy()] = POISON
        return codes

    def pieces_of(self, layers: Sequence[Layer], slot: int) -> list[tuple[int, str, int, int]]:
        """What a mixed slot holds: (layer, `key` or `value`, id or code, as what) of each piece.

        The last is 2 x layer + (0 for K, 1 for V) of the token that was found there; -1: of no token.
        """
        found = []
        for layer, pools in enumerate(layers):
            for kind, pool in zip(_KINDS, pools, strict=True):
                words = words_of(pool)[slot : slot + 1]
                if bool((words == poison_word(pool.dtype)).all()):
                    found.append((layer, kind, POISON, -1))
                    continue
                rows, columns = np.nonzero(self._prints == int(_fingerprints(words)))
                if not len(rows):
                    found.append((layer, kind, MIXED, -1))
                    continue
                found.append((layer, kind, int(self._ids[rows[0]]), int(columns[0])))
        return found


def _prints_of(layers: Sequence[Layer]) -> Codes:
    columns = [_fingerprints(words_of(pool)).cpu().numpy() for pools in layers for pool in pools]
    return np.stack(columns, axis=1)


def _fingerprints(words: torch.Tensor) -> torch.Tensor:
    """64 bits of each row of int64 [n, words]."""
    generator = torch.Generator().manual_seed(_SEED)
    low, high = -(1 << 63), (1 << 63) - 1
    factors = torch.randint(low, high, words.shape[1:], generator=generator) | 1
    factors = factors.to(words.device)
    rows = max(1, _CHUNK_ELEMENTS // words.shape[1])
    prints = []
    for part in words.split(rows):
        # Products lose what differs in high bits alone, so those are mixed into the low ones.
        prints.append(((part ^ (part >> 32)) * factors).sum(dim=1))
    return torch.cat(prints)
