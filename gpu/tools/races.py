"""Which elements two programs of one launch touched although one of them wrote: a race on a GPU."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .views import TensorView


@dataclass
class LaunchLog:
    """The plain loads and stores of one launch. The order of programs is nobody's to rely on."""

    _programs: list[tuple[int, ...]] = field(default_factory=list)
    _views: dict[str, TensorView] = field(default_factory=dict)
    # Per kind and tensor: (address of the first byte, bytes, number of the program) of each access.
    _accesses: dict[tuple[str, str], list[tuple[Any, int, int]]] = field(default_factory=dict)

    def add(
        self, kind: str, view: TensorView, addresses: Any, num_bytes: int, program: tuple[int, ...]
    ) -> str | None:
        """Note one access of `program`; return what is wrong if a store hits an element twice."""
        if not self._programs or self._programs[-1] != program:
            self._programs.append(program)
        self._views[view.name] = view
        accesses = self._accesses.setdefault((kind, view.name), [])
        accesses.append((addresses, num_bytes, len(self._programs) - 1))
        if kind == "store" and np.unique(addresses).size != addresses.size:
            ordered = np.sort(addresses)
            twice = int(ordered[1:][ordered[1:] == ordered[:-1]][0])
            return f"two lanes of one store in program {program} write {_place(view, twice)}"
        return None

    def first_race(self) -> str | None:
        """Return the first element found that two programs share and one of them writes, or None."""
        for (kind, name), stores in self._accesses.items():
            if kind != "store":
                continue
            written, writers = _bytes_of(stores)
            order = np.lexsort((writers, written))
            written, writers = written[order], writers[order]
            clash = (written[1:] == written[:-1]) & (writers[1:] != writers[:-1])
            if clash.any():
                at = int(clash.argmax())
                return self._say(name, written[at], writers[at], "writes", writers[at + 1])
            loads = self._accesses.get(("load", name))
            if loads is None:
                continue
            read, readers = _bytes_of(loads)
            found = np.minimum(np.searchsorted(written, read), written.size - 1)
            clash = (written[found] == read) & (writers[found] != readers)
            if clash.any():
                at = int(clash.argmax())
                return self._say(name, read[at], writers[found[at]], "reads", readers[at])
        return None

    def _say(self, name: str, address: Any, writer: Any, verb: str, other: Any) -> str:
        place = _place(self._views[name], int(address))
        return (
            f"race: program {self._programs[int(writer)]} writes and program "
            f"{self._programs[int(other)]} {verb} {place} in one launch"
        )


def _bytes_of(accesses: list[tuple[Any, int, int]]) -> tuple[Any, Any]:
    """Return the address of every byte touched, and the number of the program that touched it."""
    addresses = [
        (first[:, None] + np.arange(num_bytes)).ravel() for first, num_bytes, _ in accesses
    ]
    programs = [np.full(first.size * num_bytes, program) for first, num_bytes, program in accesses]
    return np.concatenate(addresses), np.concatenate(programs)


def _place(view: TensorView, address: int) -> str:
    return f"byte {address - view.start} of {view.description}"
