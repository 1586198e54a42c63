"""How many bytes a thread moves with each global load and store of a kernel's PTX, by tensor.

PTX keeps the place in the source of every access exactly; the binary's line table is coarser.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

Place = tuple[int, int, int]  # number of the file, line, column

_FILE = re.compile(r'^\s*\.file\s+(\d+) "([^"]+)"', re.MULTILINE)
_LOC = re.compile(r"^\s*\.loc\s+(\d+) (\d+) (\d+)(?:.*inlined_at (\d+) (\d+) (\d+))?")
_PLAIN = re.compile(r"\b(ld|st)\.global(?:\.[\w:]+)*?(?:\.v(\d))?\.[bsuf](\d+) ")
_ASYNC = re.compile(r"\bcp\.async\.c[ag]\.shared\.global \[[^]]*\], \[[^]]*\], (0x[0-9a-f]+|\d+)")


def access_widths(ptx: str) -> tuple[dict[str, dict[int, int]], dict[str, dict[int, int]]]:
    """Return (loads, stores): for each tensor, how many instructions move how many bytes.

    A tensor goes by the first name in the pointer argument of the kernel's own line that loads or
    stores, such as `k_ptr`, or `?` where that line holds no call with "load" or "store" in its name.
    """
    files = {int(number): path for number, path in _FILE.findall(ptx)}
    widths: dict[str, dict[str, dict[int, int]]] = {"load": {}, "store": {}}
    for kind, width, (file, line, column) in _accesses(ptx):
        name = _pointer_name(files[file], kind, line, column)
        counts = widths[kind].setdefault(name, {})
        counts[width] = counts.get(width, 0) + 1
    return widths["load"], widths["store"]


def _accesses(ptx: str) -> Iterator[tuple[str, int, Place]]:
    """Yield (load or store, bytes, place in the kernel's own function) of each global access."""
    callers: dict[Place, Place] = {}
    place = (0, 0, 0)
    in_inline_assembly = False
    for text in ptx.splitlines():
        if "inline asm" in text:
            in_inline_assembly = "begin" in text
        elif found := _LOC.match(text):
            if in_inline_assembly:
                continue  # Its lines are counted on from the access's own, to lines of other things.
            numbers = [int(number) for number in found.groups() if number is not None]
            place = (numbers[0], numbers[1], numbers[2])
            # A helper can be called from several places: the latest .loc of it says from where.
            callers.pop(place, None)
            if len(numbers) == 6:
                callers[place] = (numbers[3], numbers[4], numbers[5])
        elif found := _ASYNC.search(text):
            yield "load", int(found[1], 0), _outermost(place, callers)
        elif found := _PLAIN.search(text):
            kind, num_elements, bits = found.groups()
            width = int(num_elements or 1) * int(bits) // 8
            yield {"ld": "load", "st": "store"}[kind], width, _outermost(place, callers)


def _outermost(place: Place, callers: dict[Place, Place]) -> Place:
    while place in callers:
        place = callers[place]
    return place


def _pointer_name(file: str, kind: str, line: int, column: int) -> str:
    """Return the first name in the pointer of the innermost load or store call around a place."""
    around = [call for call in _calls(file, kind) if _contains(call, line, column)]
    for call in sorted(around, key=lambda call: (call.lineno, call.col_offset), reverse=True):
        for node in ast.walk(call.args[0]):
            if isinstance(node, ast.Name) and node.id != "tl":
                return node.id
    return "?"


def _contains(call: ast.Call, line: int, column: int) -> bool:
    """Whether a call begins at or before a place (lines and columns from 1) and ends behind it."""
    begin = (call.lineno, call.col_offset + 1)
    return begin <= (line, column) <= (call.end_lineno or 0, call.end_col_offset or 0)


@cache
def _calls(file: str, kind: str) -> tuple[ast.Call, ...]:
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args)
    return tuple(call for call in calls if kind in ast.unparse(call.func))
