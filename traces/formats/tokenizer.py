"""The tokenizer that a user names for formats that hold text."""

from collections.abc import Callable
from pathlib import Path

from ..errors import UserError
from .source import Source

_FILE = "tokenizer.json"


def load_tokenizer(source: Source) -> Callable[[str], list[int]]:
    """From a text to its token ids, without special tokens and without a chat template.

    Halves of characters, which JSON may hold and no tokenizer takes, count as U+FFFD.

    The tokenizer is a `tokenizer.json` of the tokenizers library, or a folder with one. Raises
    UserError if none is named, if it cannot be read, or if the library is not installed.
    """
    named = source.options.tokenizer
    if named is None:
        raise UserError(
            f"{source.path} holds text, which only a tokenizer turns into tokens; name a {_FILE}"
            " or its folder with --tokenizer"
        )
    path = Path(named, _FILE) if Path(named).is_dir() else Path(named)
    if not path.is_file():
        raise UserError(f"tokenizer {path} does not exist; name a {_FILE} or its folder")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UserError(
            f"{source.path} holds text, which needs the tokenizers library; pip install tokenizers"
        ) from None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"tokenizer {path} cannot be read: {error}; name another one") from None

    def token_ids(text: str) -> list[int]:
        if not text.isascii():
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return token_ids
