"""Allocators and sequences for tests that play the engine's part, and what can be asked of them."""

import pickle
from collections.abc import Iterable, Mapping
from typing import Any

from kvtwin.sim import Allocator, PolicySettings, Sequence, find_policy, policy_names
from kvtwin.sim.prompts import Pieces

# The built-in policies of `sim/engine.py`, which hand out each slot to one sequence at a time.
ALLOCATORS = [name for name in policy_names() if issubclass(find_policy(name), Allocator)]
Token = tuple[str, int, int]


def build(policy: str, num_slots: int, **fields: Any) -> Allocator:
    """An allocator over `num_slots` slots; no-cache may compute as many tokens in a step."""
    settings = {"max_model_len": num_slots, "activation_tokens": num_slots} | fields
    return find_policy(policy)(PolicySettings(num_slots=num_slots, **settings))


def sequence(
    row: int, num_prompt_tokens: int, num_output_tokens: int, pieces: Pieces = ()
) -> Sequence:
    return Sequence(row, num_prompt_tokens, num_output_tokens, num_output_tokens, pieces)


def can_run(allocator: Allocator, seq: Sequence) -> bool:
    """Whether the request would not be rejected at arrival."""
    need = allocator.largest_need(seq.num_prompt_tokens, seq.num_output_tokens, seq.max_tokens)
    return need <= allocator.largest_grant


def slots_of(allocator: Allocator, seq: Sequence) -> list[int]:
    """Every slot that the sequence holds."""
    return [slot for first, num in allocator.runs(seq) for slot in range(first, first + num)]


def slots_by_position(allocator: Allocator, seq: Sequence) -> list[int]:
    """The slot of each position. Sources of moves, which come first, are left out."""
    runs = allocator.runs(seq)[-len(seq.blocks) :]
    return [slot for first, num in runs for slot in range(first, first + num)]


def free_slots(allocator: Allocator) -> set[int]:
    return {slot for first, num in allocator.free_runs() for slot in range(first, first + num)}


def cached_slots(allocator: Allocator) -> set[int]:
    return {slot for first, num in allocator.cached_runs() for slot in range(first, first + num)}


def num_unheld_slots(allocator: Allocator) -> int:
    return allocator.num_free_slots() + allocator.num_cached_slots()


def everything(allocator: Allocator, seqs: Iterable[Sequence]) -> bytes:
    """Every bit of state: equal before and after what changes nothing."""
    log, allocator.log = allocator.log, None
    fields = [
        [getattr(seq, name, None) for name in Sequence.__slots__ if name != "due"] for seq in seqs
    ]
    state = pickle.dumps((vars(allocator), fields))
    allocator.log = log
    return state


class Memory:
    """The pool as an array of tokens, which steps write and moves copy.

    The token at a position of a row is the one that the pieces of its prompt say, else (row, position).
    """

    def __init__(self, num_slots: int, prompts: Mapping[int, Pieces]) -> None:
        self.cells: list[Token | None] = [None] * num_slots
        self._prompts = prompts
        self._places: dict[int, int] = {}  # row -> first slot of its run, for policies that move

    def carry_out(self, decisions: Iterable[tuple[str, int, int, int]]) -> None:
        """The copies among (action, row, first, num), in their order.

        A copy may overlap itself, as a slide by compaction does.
        """
        for action, row, first, num in decisions:
            if action == "move":
                # A run that moves in order to grow may lie too near to the end for `num` slots.
                copied = self.cells[self._places[row] :][:num]
                self.cells[first : first + len(copied)] = copied
            if action in ("grant", "move"):
                self._places[row] = first

    def token(self, row: int, position: int) -> Token:
        left = position
        for stream, start, num_tokens in self._prompts.get(row, ()):
            if left < num_tokens:
                return "stream", stream, start + left
            left -= num_tokens
        return "row", row, position

    def compute(self, row: int, slots: list[int], start: int, stop: int) -> None:
        """Positions [start, stop) of a sequence are computed, which reads those before them."""
        for position in range(start):
            assert self.cells[slots[position]] == self.token(row, position), (
                f"INV-7: request {row} reads position {position} at slot {slots[position]}, which "
                f"holds {self.cells[slots[position]]}"
            )
        for position in range(start, stop):
            self.cells[slots[position]] = self.token(row, position)
