"""Files that are one JSON document, lines of such documents, or folders of such files."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import UserError
from .checks import fail_at, parsed_json, shown
from .json_value import JsonValue
from .source import Head, Source, read_head

_ENDINGS = (".json", ".jsonl", ".json.gz", ".jsonl.gz", ".json.zst", ".jsonl.zst")
_OTHER_FILE = "file of the folder in another format"


def json_files(folder: Path) -> list[Path]:
    """The files of a folder that are named as JSON, in order of their names."""
    return sorted(path for path in folder.iterdir() if path.name.endswith(_ENDINGS))


def documents(source: Source, recognises: Callable[[Head], bool]) -> Iterator[JsonValue]:
    """The documents of a file, or of those files of a folder that `recognises` knows."""
    if not source.head.is_folder:
        yield from documents_of_file(source)
        return
    for path in json_files(source.path):
        head = read_head(path)
        if head.is_folder or not recognises(head):
            source.skipped[_OTHER_FILE] += 1
        else:
            yield from documents_of_file(
                Source(head, source.options, source.skipped, source.unknown_keys, source.notes)
            )


def load_document(source: Source) -> JsonValue:
    """The file as one JSON value. Raises UserError, with the line if there is one, if it is broken."""
    try:
        return JsonValue(json.loads(source.document()), str(source.path))
    except json.JSONDecodeError as error:
        place, problem = source.place(error.lineno), f"{error.msg} at column {error.colno}"
    except (ValueError, RecursionError) as error:  # bad UTF-8, absurdly long numbers, deep nesting
        place, problem = str(source.path), shown(str(error).partition("\n")[0])
    raise UserError(f"{place}: cannot be read as JSON ({problem}); fix the file or write it anew")


def documents_of_file(source: Source) -> Iterator[JsonValue]:
    """The only document of a file, or the one on each of its lines."""
    # A document on one line is also the only line of its file.
    if source.head.row is None:
        yield load_document(source)
        return
    for line, text in source.lines():
        row = parsed_json(text)
        if not isinstance(row, dict):
            fail_at(source.place(line), "not one complete JSON object")
        yield JsonValue(row, source.place(line))
