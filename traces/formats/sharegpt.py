"""Conversations as text: ShareGPT's list of objects, or one object in each line.

An object has `conversations` (or `conversation`, `messages`): messages with `from` and `value`, or
`role` and `content`. Each answer of an assistant is a call whose prompt is all that was said
before it. There are no times: all arrive at once, and a call follows the one before it after a
time that is not known. Lengths and content are those of the tokenizer that the user names, message
by message; a chat template would add a few tokens to each.
"""

from collections.abc import Iterator

from ..sessions import UNKNOWN_THINK_NS
from ..trace import TraceChunk
from .calls import Call, chunk_of_calls, content_of_pieces
from .json_documents import documents_of_file, load_document
from .json_head import head_keys
from .json_value import JsonValue, count_unknown
from .messages import message_role, message_text
from .source import Head, Source
from .token_streams import head as head_of
from .token_streams import packed, streams_of_tokens
from .tokenizer import load_tokenizer

SHAPE = "JSON list or JSONL of objects with conversations; its text needs --tokenizer"
_LISTS = ("conversations", "conversation", "messages")
_KEYS = frozenset((*_LISTS, "id", "conversation_id"))
_OF_OTHER_FORMATS = {"timestamp", "delay", "input_length", "arrival_time_ns"}
_ASSISTANTS = ("gpt", "assistant", "chatgpt", "bing", "bard", "model")
_NOTES = (
    "conversations have no times: all calls arrive at once",
    "messages are tokenized one by one, without a chat template",
)
_NO_PROMPT = "answer to nothing"
_NO_TEXT = "answer without text"


def recognises(head: Head) -> bool:
    keys = head_keys(head)
    return any(key in keys for key in _LISTS) and _OF_OTHER_FORMATS.isdisjoint(keys)


def read(source: Source) -> Iterator[TraceChunk]:
    token_ids = load_tokenizer(source)
    calls: list[Call] = []
    sequences: list[bytes] = []  # the tokens of each conversation
    for conversation in _conversations(source):
        said: list[int] = []
        after: tuple[int, ...] = ()
        for message in conversation.items():
            ids = token_ids(message_text(message))
            if message_role(message) in _ASSISTANTS:
                if said and ids:
                    calls.append(
                        Call(len(sequences), 0, len(said), len(ids), after, UNKNOWN_THINK_NS)
                    )
                    after = (len(calls) - 1,)
                else:
                    source.skipped[_NO_TEXT if said else _NO_PROMPT] += 1
            said += ids
        sequences.append(packed(said))
    source.notes += _NOTES
    pieces = streams_of_tokens(sequences)
    content = content_of_pieces(
        [
            head_of(pieces[call.session], call.num_prompt_tokens + call.num_output_tokens)
            for call in calls
        ]
    )
    yield from chunk_of_calls(source.path, calls, content)


def _conversations(source: Source) -> Iterator[JsonValue]:
    is_list = source.head.data.lstrip().startswith(b"[")
    for each in load_document(source).items() if is_list else documents_of_file(source):
        count_unknown(each, _KEYS, source.unknown_keys)
        yield next((each[key] for key in _LISTS if key in each.value), None) or each[_LISTS[0]]
