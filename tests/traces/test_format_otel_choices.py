"""OpenTelemetry spans that ask for several choices."""

from pathlib import Path

import pytest
import word_tokenizer
from format_cases import column, failure, hits, lengths, read
from otel_cases import messages, span, used


def test_choices_are_samples_that_share_the_output_tokens(tmp_path: Path) -> None:
    spans = [
        used("00.0", "01.0", 10, 7, request__choice__count=3),
        used("02.0", "03.0", 20, 2),
        used("04.0", "05.0", 30, 1, request__choice__count=4),
    ]
    trace = read(tmp_path / "spans.json", {"spans": spans})
    assert column(trace, "num_samples") == [3, 1, 4]
    assert lengths(trace) == [(10, 3), (20, 2), (30, 1)]
    assert any("each choice gets an equal part" in note for note in trace.notes)
    plain = read(tmp_path / "spans.json", {"spans": spans[1:2]})
    assert plain.chunks[0].num_samples is None
    assert not any("choice" in note for note in plain.notes)
    for bad in (0, 10_001, "two"):
        spans[1] = used("02.0", "03.0", 20, 2, request__choice__count=bad)
        assert "choice.count" in failure(tmp_path / "spans.json", {"spans": spans})


def test_of_several_choices_only_the_prompt_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = word_tokenizer.install(tmp_path, monkeypatch)
    said = messages("one two"), messages("three four", "five")
    spans = [
        span(
            "00.0",
            "01.0",
            input__messages=said[0],
            output__messages=said[1],
            request__choice__count=2,
        ),
        span(
            "02.0",
            "03.0",
            input__messages=messages("one two", "three four"),
            output__messages=said[1],
        ),
    ]
    trace = read(tmp_path / "spans.json", {"spans": spans}, tokenizer=words)
    assert lengths(trace) == [(2, 2), (4, 3)]
    assert hits(trace) == [0, 2]
