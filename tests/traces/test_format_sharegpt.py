"""Conversations as text: each answer is a call, the turns before it are its prompt."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import word_tokenizer
from example_counts import fuzz_examples
from format_cases import (
    awaited,
    broken_bytes,
    broken_json,
    check_fuzzed,
    column,
    failure,
    hits,
    jsonl,
    lengths,
    read,
    write,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtwin.traces import open_trace
from kvtwin.traces.formats.source import ReadOptions

Json = dict[str, Any]


def turns(*texts: str, first: str = "human") -> list[Json]:
    order = ("human", "gpt") if first == "human" else ("gpt", "human")
    return [{"from": order[i % 2], "value": text} for i, text in enumerate(texts)]


CHATS = [
    {"id": "a", "conversations": turns("you are kind", "yes", "why so", "ask my maker now")},
    {"id": "b", "conversations": turns("you are kind too", "no")},
    {"id": "c", "conversations": turns("hello there", "you are", first="gpt")},
]


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return word_tokenizer.install(tmp_path, monkeypatch)


def test_each_answer_is_a_call(tmp_path: Path, words: str) -> None:
    trace = read(tmp_path / "chats.json", [CHATS[0] | {"lang": "en"}, *CHATS[1:]], tokenizer=words)
    assert (trace.format, trace.unknown_keys) == ("sharegpt", {"lang": 1})
    assert lengths(trace) == [(3, 1), (6, 4), (4, 1)]
    assert column(trace, "arrival_ns") == [0, 0, 0]
    assert awaited(trace) == [([], -1), ([0], -1), ([], -1)]
    # The second call repeats the 3 + 1 tokens of the first, but for the last one's KV.
    assert hits(trace) == [0, 3, 3]
    assert trace.skipped == {"answer to nothing": 1}
    assert len(trace.notes) == 2


def test_half_a_character_is_text_too(tmp_path: Path, words: str) -> None:
    """A text that was cut inside an emoji, as JSON writes it; it is equal to itself alone."""
    texts = ("so \\ud83d", "yes"), ("so \\ud83d", "no"), ("so \\ud83d\\ude00", "no"), ("so é", "no")
    rows = [f'{{"conversations": {json.dumps(turns(*pair))}}}\n' for pair in texts]
    trace = read(tmp_path / "t.jsonl", "".join(rows).replace("\\\\u", "\\u"), tokenizer=words)
    assert lengths(trace) == [(2, 1)] * 4
    assert hits(trace) == [0, 2, 1, 1]


def test_dialects(tmp_path: Path, words: str) -> None:
    """Lines of objects, roles, content in parts, a system prompt, an answer without text."""
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "say a"}, {"type": "image"}]},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "content": "a b c"},
        {"role": "assistant", "parts": [{"type": "text", "content": "a b"}, " c"]},
    ]
    for key in ("messages", "conversation", "conversations"):
        trace = read(tmp_path / "m.jsonl", jsonl({key: messages}, {key: []}), tokenizer=words)
        assert lengths(trace) == [(2 + 2 + 3, 3)]
        assert trace.skipped == {"answer without text": 1}


def test_a_folder_names_its_tokenizer(tmp_path: Path, words: str) -> None:
    trace = read(tmp_path / "chats.json", CHATS, tokenizer=str(tmp_path))
    assert trace.num_requests == 3


def test_tokenizer_that_cannot_be(
    tmp_path: Path, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "chats.json", CHATS)
    assert "holds text, which only a tokenizer turns into tokens; name a" in failure(path)
    (tmp_path / "bad.json").write_text("no")
    for named, message in {
        str(tmp_path / "none"): f"tokenizer {tmp_path}/none does not exist; name a tokenizer.json",
        str(tmp_path / "bad.json"): "cannot be read: expected value at line 1 column 1; name",
    }.items():
        with pytest.raises(Exception, match="tokenizer") as caught:
            open_trace(path, options=ReadOptions(tokenizer=named))
        assert message in str(caught.value)
        assert type(caught.value).__name__ == "UserError"
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert "needs the tokenizers library; pip install tokenizers" in failure(path, tokenizer=words)


@pytest.mark.parametrize(
    ("content", "words_of_message"),
    [
        ([{"conversations": 3}], "[0].conversations is 3; it must be a list"),
        ([{"conversations": [3]}], "[0].conversations[0] is 3; it must be an object"),
        ([{"conversations": [{"value": "a"}]}], "key role of [0].conversations[0] is missing"),
        ([{"conversations": [{"from": 1, "value": ""}]}], "[0].conversations[0].from is 1"),
        ([{"conversations": [{"from": "gpt", "value": 7}]}], "[0].conversations[0].value is 7"),
        ([CHATS[0], {"id": "x"}], "key conversations of [1] is missing; keys seen: id"),
        ([{"conversations": turns("alone")}], "the trace is empty"),
        ('[{"conversations": [', "line 1: cannot be read as JSON"),
        (jsonl(CHATS[0]) + "{\n", "line 2: not one complete JSON object"),
        ([{"name": "x"}, CHATS[0]], "in no known format"),
    ],
)
def test_broken_files(tmp_path: Path, words: str, content: Any, words_of_message: str) -> None:
    assert words_of_message in failure(tmp_path / "chats.json", content, tokenizer=words)


@settings(max_examples=fuzz_examples())
@given(data=st.one_of(broken_json(CHATS), broken_bytes(json.dumps(CHATS).encode())))
def test_fuzzed(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        named = word_tokenizer.install(folder, patch)
        check_fuzzed(folder / "fuzzed.json", data, "sharegpt", tokenizer=named)


def test_the_library_itself(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="the tokenizers library is not installed")
    vocabulary = {word: i for i, word in enumerate(["[UNK]", "you", "are", "kind", "yes", "why"])}
    model = tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    trace = read(tmp_path / "chats.json", CHATS, tokenizer=str(tmp_path))
    assert lengths(trace) == [(3, 1), (6, 4), (4, 1)]
    assert hits(trace) == [0, 3, 3]
