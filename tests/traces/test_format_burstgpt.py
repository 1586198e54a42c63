"""BurstGPT: columns by name, failed calls, think times."""

from pathlib import Path

import pytest
from example_counts import fuzz_examples
from format_cases import S, awaited, broken_bytes, check_fuzzed, column, failure, lengths, read
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtwin.traces import describe, open_trace
from kvtwin.traces.formats import source

V1 = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
V3 = V1.replace("Model", "Session ID,Elapsed time,Model")


def test_columns_go_by_name_and_failed_calls_are_counted(tmp_path: Path) -> None:
    rows = (
        "5,ChatGPT,0,0,0,API log\n"
        "45,ChatGPT,1087,0,1087,API log\n"
        "118,GPT-4,417,276,693,Conversation log\n"
        "120.5,GPT-4,0,7,7,API log\n"
        "121.25,GPT-4,1,2,3,API log\n"
    )
    trace = read(tmp_path / "b.csv", V1 + rows)
    assert trace.format == "burstgpt"
    assert trace.skipped == {
        "failed call, no output tokens": 2,
        "call without prompt tokens": 1,
    }
    assert lengths(trace) == [(417, 276), (1, 2)]
    # The first request that is kept comes at 0.
    assert column(trace, "arrival_ns") == [0, 3_250_000_000]
    assert (trace.unknown_keys, trace.chunks[0].sessions) == ({}, None)


def test_think_time_is_what_lies_between_a_response_and_the_next_request(tmp_path: Path) -> None:
    rows = (
        "100.0,a,10,m,5,1,6,Conversation log\n"
        "103.0,b,1,m,5,2,7,Conversation log\n"
        "104.0,,2,m,5,9,14,API log\n"
        "112.5,a,4.5,m,5,3,8,Conversation log\n"
        "115.0,a,1,m,5,4,9,Conversation log\n"  # while the one before was running
        "120.0,a,1,m,5,5,10,Conversation log\n"
    )
    trace = read(tmp_path / "b.csv", V3 + rows)
    sessions = trace.chunks[0].sessions
    assert sessions is not None
    assert sessions.session.tolist() == [0, 1, -1, 0, 0, 0]
    assert sessions.call.tolist() == [0, 0, 0, 1, 2, 3]
    # The last one comes 3 s after the longest of those before it ended, at 117 s.
    assert awaited(trace) == [([], -1)] * 3 + [([0], 2_500_000_000), ([], -1), ([4], 3 * S)]


def test_sessions_go_on_over_the_blocks_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_READ_BYTES", 200)
    trace = read(tmp_path / "b.csv", V3 + "100.0,a,0,m,5,1,6,Conversation log\n" * 60)
    assert len(trace.chunks) > 1
    assert awaited(trace)[1:] == [([row], 0) for row in range(59)]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("x,a,1,m,5,5,10,l", "Timestamp is x"),
        ("1,a,x,m,5,5,10,l", "Elapsed time is x"),
        ("1,a,-1,m,5,5,10,l", "Elapsed time is -1"),
        ("1,a,1,m,-5,5,10,l", "Request tokens is -5; it must be a whole number of at least 0"),
        ("1,a,1,m,5,5.5,10,l", "Response tokens is 5.5"),
        ("1,a,1,m,5,5,10", "7 columns where the header has 8"),
    ],
)
def test_bad_rows(tmp_path: Path, row: str, words: str) -> None:
    message = failure(tmp_path / "b.csv", V3 + "0,a,1,m,5,5,10,l\n" + row + "\n")
    assert " line 3: " in message
    assert words in message


def test_a_file_of_failed_calls_is_empty(tmp_path: Path) -> None:
    message = failure(tmp_path / "b.csv", V1 + "1,m,5,0,5,l\n")
    assert "no rows; left out: 1 x failed call" in message


def test_public_rows(shared_dir: Path) -> None:
    one = open_trace(shared_dir / "traces/burstgpt/BurstGPT_1.docrows.csv")
    assert (column(one, "arrival_ns"), lengths(one)) == (
        [0, 40 * S, 113 * S],
        [(472, 18), (1087, 230), (417, 276)],
    )
    three = open_trace(shared_dir / "traces/burstgpt/BurstGPT_3.docrows.csv")
    assert column(three, "arrival_ns") == [0, 51 * S, 82 * S, 144 * S]
    assert lengths(three) == [(906, 446), (36, 29), (1779, 123), (935, 178)]
    sessions = describe(three).sessions
    assert sessions is not None
    assert (sessions.num_sessions, sessions.num_calls) == (4, 4)


VALID = (V3 + "1.5,a,2,m,5,6,11,l\n2,,1,m,7,0,7,l\n9,a,1,m,3,4,7,l\n").encode()


@settings(max_examples=fuzz_examples())
@given(data=broken_bytes(VALID), named=st.booleans())
def test_fuzz(tmp_path_factory: pytest.TempPathFactory, data: bytes, named: bool) -> None:
    path = tmp_path_factory.getbasetemp() / "burstgpt.fuzz"
    check_fuzzed(path, data, "burstgpt" if named else None)
