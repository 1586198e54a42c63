"""vLLM-shaped KV-cache events, with the SHA-256 hashes that name blocks there (vllm/distributed/kv_events.py)."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence as Seq
from typing import Any

from .cache_manager import CacheManager
from .content import tokens_of
from .request import Request

Event = dict[str, Any]
_SHOWN_DIGITS = 16


def _hash(value: object) -> bytes:
    # vLLM's `sha256`: of the pickle, protocol 5 as written by Python 3.
    return hashlib.sha256(pickle.dumps(value, protocol=5)).digest()


ROOT = _hash("vllm-none-hash")


class EventWriter:
    """Makes the events of a cache manager. Only this needs hashes; they follow from tokens, and are kept by number."""

    def __init__(self, cache: CacheManager) -> None:
        self._cache = cache
        self._block_size = cache.settings.block_size
        self._hashes: dict[int, bytes] = {}  # by number of the block in `Chains`
        self.events: list[Event] = []

    def take(self) -> list[Event]:
        """The events since the last call, in order."""
        events, self.events = self.events, []
        return events

    def _digits(self, request: Request, index: int) -> str:
        """Hash of the tokens up to the end of block `index`, as events show it."""
        return self._hash_of(request, index).hex()[:_SHOWN_DIGITS]

    def _hash_of(self, request: Request, last: int) -> bytes:
        numbers, size = request.numbers, self._block_size
        index = last
        while index >= 0 and numbers[index] not in self._hashes:
            index -= 1
        parent = self._hashes[numbers[index]] if index >= 0 else ROOT
        for block in range(index + 1, last + 1):
            tokens = tuple(tokens_of(request.spans, block * size, (block + 1) * size))
            parent = self._hashes[numbers[block]] = _hash((parent, tokens, None))
        return parent

    def removed(self, key: int) -> None:
        number, group = divmod(key, len(self._cache.groups))
        self.events.append(
            {
                "type": "BlockRemoved",
                "block_hashes": [self._hashes[number].hex()[:_SHOWN_DIGITS]],
                "medium": "GPU",
                "group_idx": group,
                "locality": None,
                "ownership": None,
            }
        )

    def stored(self, request: Request, number: int, begin: int, stored: Seq[bool]) -> None:
        group = self._cache.groups[number]
        size = self._block_size
        hashes = [
            self._digits(request, index)
            for index, is_stored in enumerate(stored, begin)
            if is_stored
        ]
        end = begin + len(stored)
        self.events.append(
            {
                "type": "BlockStored",
                "block_hashes": hashes,
                "parent_block_hash": self._digits(request, begin - 1) if begin else None,
                "token_ids": list(tokens_of(request.spans, begin * size, end * size)),
                "block_size": size,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
                "extra_keys": [None] * len(hashes) or None,
                "group_idx": number,
                "kv_cache_spec_kind": group.kind,
                "kv_cache_spec_sliding_window": group.window,
                "locality": None,
                "ownership": None,
                "session_id": None,
            }
        )
