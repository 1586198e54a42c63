"""The same for groups of layers: tables by position, with nothing where a block is out of sight."""

from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from naive_device import SHAPE, NaiveDevice

from kvtwin.gpu.audit import LayerGroup
from kvtwin.traces import Trace

NOWHERE = -1


class NaiveGroupDevice(NaiveDevice):
    """As many layers as the slots of a token, the first ones in the first group; each group has the first pools."""

    def __init__(self, trace: Trace, assembly: Any) -> None:
        groups = assembly.pool.groups
        ends = list(accumulate(groups.token_slots))
        self.groups = tuple(
            LayerGroup(tuple(range(end - num, end)), window or 0, num)
            for window, num, end in zip(groups.windows, groups.token_slots, ends, strict=True)
        )
        shape = replace(SHAPE, num_layers=ends[-1])
        super().__init__(trace, assembly, shape, groups.block_token_slots)
        self.ended: set[int] = set()  # rows that hold nothing, unless they go on

    def follow(self) -> None:
        super().follow()
        for row in list(self.ended):
            self.begin(row)

    def begin(self, row: int) -> None:
        if row in self.ended:
            self.ended.remove(row)
            for key in self.of_request((row, 0)):
                del self.tables[key]

    def skip(self, key: Any, slots: list[int], _: list[int]) -> None:
        self.begin(key[0])
        self.tables.setdefault(key, []).extend([NOWHERE] * len(slots))

    def grant(self, key: Any, slots: list[int], source: list[int]) -> None:
        self.begin(key[0])
        super().grant(key, slots, source)

    def extend(self, key: Any, slots: list[int], source: list[int]) -> None:
        self.ended.discard(key[0])
        super().grant(key, slots, source)

    def share(self, key: Any, slots: list[int], source: list[int]) -> None:
        self.begin(key[0])
        self.tables.setdefault(key, []).extend(slots)

    def free(self, key: Any, slots: list[int], _: list[int]) -> None:
        table = self.tables[key]
        table[:] = [NOWHERE if slot in slots else slot for slot in table]
        held = {slot for other in self.of_request(key) for slot in self.tables[other]}
        if held <= {NOWHERE}:
            self.ended.add(key[0])

    def write(self, key: Any, first: int, num: int) -> None:
        ids = torch.from_numpy(self.ids_of(key)[first : first + num].copy())
        keys, values = self.content.of(ids, "key"), self.content.of(ids, "value")
        for number, group in enumerate(self.groups):
            slots = self.tables[key[0], number][first : first + num]
            layers = list(group.layers)
            self.store(slots, keys[layers], values[layers])
