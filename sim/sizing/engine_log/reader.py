"""From a start-up log to what it states."""

import re
from collections.abc import Iterator
from pathlib import Path

from kvtwin.traces import UserError

from .facts import LogFacts
from .sentences import EngineFormat, readings_of, speaks
from .sglang import SGLANG
from .starts import Starts, counting_by_rank
from .trtllm import TRTLLM
from .vllm import VLLM

ENGINES = (VLLM, SGLANG, TRTLLM)
# A longer line is cut: what engines print is far shorter.
_MAX_LINE_BYTES = 1 << 20
_SNIFFED_BYTES = 1 << 13
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_RANK_WITHIN = 200
_BOMS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


def read_engine_log(path: str | Path) -> LogFacts:
    """Read the start-up lines of vLLM, SGLang or TensorRT-LLM out of a log.

    Other lines are passed over. Of several starts the last that states its KV-cache size is read,
    and `notes` says so. Raises UserError, one line, if the file cannot be read as text or has no
    known line.
    """
    path = Path(path)
    found = [Starts(engine) for engine in ENGINES]
    num_lines = 0
    try:
        for num_lines, text in enumerate(_lines(path), start=1):
            for starts in found:
                if speaks(starts.engine, text):
                    rank = _rank_of(starts.engine, text)
                    readings = list(readings_of(starts.engine, text, num_lines, rank))
                    if readings:
                        starts.add(text, rank, num_lines, readings)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; check the file") from None
    speaking = [starts for starts in found if starts.starts]
    if not speaking:
        raise UserError(
            f"{path} has no start-up line of a known engine in its {num_lines} lines; looked for "
            + "; ".join(engine.looked_for for engine in ENGINES)
        )
    return _facts(path, speaking)


def _facts(path: Path, speaking: list[Starts]) -> LogFacts:
    # The engine that says how large its pool is; of several, the one that says most.
    def said(starts: Starts) -> tuple[bool, int]:
        start = starts.counting
        assert start is not None, f"{starts.engine.name} has no start"
        return start.complete, len(start.names)

    chosen = max(speaking, key=said)
    start = chosen.counting
    assert start is not None, f"{chosen.engine.name} has no start"
    notes = list(chosen.notes())
    others = [starts.engine.name for starts in speaking if starts is not chosen]
    if others:
        notes.append(f"lines that read like {' and '.join(others)} are passed over")
    by_rank = counting_by_rank(chosen.engine, start)
    return LogFacts.of(str(path), chosen.engine.name, tuple(start.readings), by_rank, tuple(notes))


def _lines(path: Path) -> Iterator[str]:
    """The lines of a text file, one at a time, without colours and line ends."""
    if path.is_dir():
        raise UserError(f"{path} is a directory; name a log file")
    if not path.exists():
        raise UserError(f"{path} does not exist; check the path")
    if not path.is_file():
        raise UserError(f"{path} is not a regular file; write the log to a file first")
    with path.open("rb") as file:
        _check_text(path, file.peek(_SNIFFED_BYTES)[:_SNIFFED_BYTES])
        while line := file.readline(_MAX_LINE_BYTES):
            end = line
            while len(end) == _MAX_LINE_BYTES and not end.endswith(b"\n"):
                end = file.readline(_MAX_LINE_BYTES)
            # A byte that is not UTF-8 cannot be part of what is looked for.
            yield _COLOURS.sub("", line.decode("utf-8", errors="replace")).rstrip("\r\n")


def _check_text(path: Path, beginning: bytes) -> None:
    if not beginning:
        raise UserError(f"{path} is empty; name a log that an engine wrote")
    if beginning.startswith(b"\x1f\x8b"):
        raise UserError(f"{path} is compressed with gzip; unpack it first")
    if beginning[:2] in _BOMS:
        raise UserError(f"{path} is {_BOMS[beginning[:2]]} text; save it as UTF-8 first")
    if b"\0" in beginning:
        raise UserError(f"{path} is a binary file, not a log; name a text file")


def _rank_of(engine: EngineFormat, text: str) -> str:
    match = engine.rank.search(text[:_RANK_WITHIN])
    return next(group for group in match.groups() if group) if match else ""
