"""A stand-in for the tokenizers library: words between blanks, each with an id of its own."""

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

_IDS: dict[str, int] = {}


@dataclass
class _Encoding:
    ids: list[int]


class Tokenizer:
    """What our readers use of the library's class of this name."""

    @staticmethod
    def from_file(path: str) -> "Tokenizer":
        if Path(path).read_text() != "words":
            raise Exception("expected value at line 1 column 1")  # as the library does
        return Tokenizer()

    def encode(self, text: str, add_special_tokens: bool) -> _Encoding:
        assert not add_special_tokens
        try:
            text.encode()
        except UnicodeEncodeError:
            raise TypeError("TextInputSequence must be str") from None  # as the library does
        return _Encoding([_IDS.setdefault(word, len(_IDS)) for word in text.split()])


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Put the stand-in where the library is imported from. Returns a tokenizer's name."""
    module = ModuleType("tokenizers")
    module.Tokenizer = Tokenizer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tokenizers", module)
    (folder / "tokenizer.json").write_text("words")
    return str(folder / "tokenizer.json")
