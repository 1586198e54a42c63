"""ServeGen clients: how many requests, at which times and of which lengths a model draws."""

import csv
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_counts import fuzz_examples
from format_cases import (
    S,
    broken_bytes,
    broken_json,
    check_fuzzed,
    column,
    failure,
    lengths,
    write,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtwin.traces import Trace, UserError, describe, open_trace
from kvtwin.traces.formats.source import ReadOptions

# Silent, then 300 requests, then 120 six hours later.
WINDOWS = "0,0,0,,0,0\n600,0.5,1,Gamma,1.0,2.0\n21600,0.2,0.5,Weibull,2.1,5.6\n"
LENGTHS = {
    "0": {"input_tokens": "{10: 0.25, 20: 0.75}", "output_tokens": "{1: 1.0}"},
    "21600": {"input_tokens": "{7: 1}", "output_tokens": "{3: 5e-1, 4: 0.5,}"},
    "43200": {"input_tokens": "{}", "output_tokens": "{}"},
}


def client(folder: Path, windows: str = WINDOWS, lengths: Any = LENGTHS, name: str = "c") -> Path:
    write(folder / f"{name}-dataset.json", lengths)
    return write(folder / f"{name}-trace.csv", windows)


def drawn(path: Path, seed: int = 0) -> Trace:
    return open_trace(path, options=ReadOptions(seed=seed))


def test_counts_windows_and_lengths(tmp_path: Path) -> None:
    trace = drawn(client(tmp_path))
    assert (trace.format, trace.name) == ("servegen", "c-trace")
    first, second = lengths(trace)[:300], lengths(trace)[300:]
    assert len(second) == 120
    assert {output for _, output in first} == {1}
    assert {prompt for prompt, _ in first} == {10, 20}
    assert {prompt for prompt, _ in second} == {7}
    assert {output for _, output in second} == {3, 4}
    # 300 draws of probability 0.75 are within 5 standard deviations of 225.
    assert abs(first.count((20, 1)) - 225) < 5 * (300 * 0.75 * 0.25) ** 0.5
    # The first request is at 0; the first window ends less than 600 s and the second begins less
    # than 21600 s after it.
    arrival_ns = column(trace, "arrival_ns")
    assert arrival_ns[299] < 600 * S
    assert 20_400 * S < arrival_ns[300] <= arrival_ns[-1] < 21_600 * S
    assert any("drawn with seed 0" in note for note in trace.notes)


def test_gaps_have_the_shape_of_their_window(tmp_path: Path) -> None:
    """Gamma of shape 4: CV 1/2. Weibull of shape 2: CV 0.5227, from its first two moments."""
    for distribution, shape, cv in (("Gamma", 4, 0.5), ("Weibull", 2, 0.5227), ("Gamma", 0.25, 2)):
        windows = f"0,20,1,{distribution},{shape},3\n"
        gaps = np.diff(column(drawn(client(tmp_path, windows)), "arrival_ns"))
        assert len(gaps) == 20 * 600 - 1
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.06)
        assert gaps.mean() == pytest.approx(S / 20, rel=0.01)  # the scale does not matter


def test_the_gap_behind_the_last_request_is_drawn_too(tmp_path: Path) -> None:
    """Of two exponential gaps that fill a window, the first has an even share: spread 1 / sqrt(12)."""
    every = {str(start): LENGTHS["0"] for start in range(0, 240_000, 21_600)}
    windows = "".join(f"{600 * i},{1 / 600},1,Gamma,1,9\n" for i in range(400))
    arrival_s = np.array(column(drawn(client(tmp_path, windows, every)), "arrival_ns")) / S
    assert len(arrival_s) == 400
    places = arrival_s - 600 * np.arange(400)
    assert places.std() == pytest.approx(600 / 12**0.5, rel=0.1)


def test_seeds(tmp_path: Path) -> None:
    """Another seed draws other requests; a client draws the same beside others."""
    path = client(tmp_path)
    alone, again, other = (column(drawn(path, seed), "arrival_ns") for seed in (5, 5, 6))
    assert alone == again
    assert alone != other
    client(tmp_path, "0,0.5,1,Gamma,1,2\n", name="b")
    with pytest.raises(UserError, match="seed is -1; it must be at least 0"):
        drawn(path, seed=-1)
    both = drawn(tmp_path, seed=5)
    assert both.num_requests == 420 + 300
    whole = np.array(column(both, "arrival_ns"))
    # The other client starts in a window before; then all of the first one's requests are there.
    assert any(
        set((np.array(alone) + shift).tolist()) <= set(whole.tolist())
        for shift in (whole[whole < 1200 * S] - alone[0])
    )


def test_both_files_and_a_folder_are_the_same_trace(tmp_path: Path) -> None:
    path = client(tmp_path)
    ways = (path, tmp_path / "c-dataset.json", tmp_path)
    one, two, three = (column(drawn(way), "arrival_ns") for way in ways)
    assert one == two == three


def test_requests_without_lengths_are_counted(tmp_path: Path) -> None:
    windows = WINDOWS + "43200,0.1,1,Gamma,1,1\n64800,0.1,1,Gamma,1,1\n"
    trace = drawn(client(tmp_path, windows))
    assert trace.skipped == {"request in a window without lengths": 120}
    assert trace.num_requests == 420


def test_other_fields_are_counted(tmp_path: Path) -> None:
    more = {"0": LENGTHS["0"] | {"image_tokens": "{}"}, "21600": LENGTHS["21600"]}
    assert drawn(client(tmp_path, lengths=more)).unknown_keys == {"image_tokens": 1}


@pytest.mark.parametrize(
    ("windows", "words"),
    [
        ("600,0.5,1,Gamma,1.0\n", "line 2: 600,0.5,1,Gamma,1.0 is not start, rate, CV"),
        ("600,0.5,1,Pareto,1,1\n", "line 2: 600,0.5,1,Pareto,1,1 is not start"),
        ("600,nan,1,Gamma,1,1\n", "line 2: 600,nan,1,Gamma,1,1 is not start"),
        ("600,-1,1,Gamma,1,1\n", "line 2: 600,-1,1,Gamma,1,1 is not start"),
        ("600,1,1,,1,1\n", "line 2: rate is 1 but there is no distribution of gaps"),
        ("600,1,1,Gamma,0,1\n", "line 2: rate is 1 but there is no distribution of gaps"),
        ("650,1,1,Gamma,1,1\n", "line 2: window start is 650; it must be a multiple of 600"),
        ("0,1,1,Gamma,1,1\n", "line 2: window start is 0"),
        ("9e9,1,1,Gamma,1,1\n", "line 2: window start is 9e9"),
        ("600,1e9,1,Gamma,1,1\n", "line 2: rate is 1e9; a client has at most 50,000,000"),
        ("", "the trace is empty"),
    ],
)
def test_broken_windows(tmp_path: Path, windows: str, words: str) -> None:
    path = client(tmp_path, "0,0,0,,0,0\n" + windows)
    assert words in failure(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"5": LENGTHS["0"]}, "5 is no start of 6 hours"),
        ({"x": LENGTHS["0"]}, "x is no start of 6 hours"),
        ({"0": 3}, "0 is 3; it must be an object"),
        ({"0": {"input_tokens": "{}"}}, "key output_tokens of 0 is missing"),
        ({"0": LENGTHS["0"] | {"input_tokens": {"10": 1}}}, "0.input_tokens is"),
        ({"0": LENGTHS["0"] | {"input_tokens": "{10: 0.5"}}, "the text of a dict"),
        ({"0": LENGTHS["0"] | {"input_tokens": "{10: __import__('os')}"}}, "the text of a dict"),
        ({"0": LENGTHS["0"] | {"input_tokens": "{10: -1, 11: 2}"}}, "the text of a dict"),
        ({"0": LENGTHS["0"] | {"input_tokens": "{0: 1.0}"}}, "has a token count that is not"),
        ({"0": LENGTHS["0"] | {"input_tokens": "{99999999: 1}"}}, "has a token count that is not"),
        ({"0": LENGTHS["0"] | {"input_tokens": "{10: 0.9}"}}, "probabilities of sum 0.9;"),
    ],
)
def test_broken_lengths(tmp_path: Path, change: Any, words: str) -> None:
    path = client(tmp_path, lengths=LENGTHS | change)
    with pytest.raises(UserError, match=r"c-dataset\.json") as caught:
        drawn(path)
    assert words in str(caught.value)


def test_one_file_of_a_pair(tmp_path: Path) -> None:
    path = client(tmp_path)
    (tmp_path / "c-dataset.json").unlink()
    assert "needs c-dataset.json beside it" in failure(path)
    path.rename(tmp_path / "other.csv")
    assert "is one file of a ServeGen client" in failure(tmp_path / "other.csv")


@settings(max_examples=fuzz_examples())
@given(
    windows=st.one_of(st.just(WINDOWS.encode()), broken_bytes(WINDOWS.encode())),
    table=st.one_of(broken_json(LENGTHS), broken_bytes(json.dumps(LENGTHS).encode())),
)
def test_fuzzed(tmp_path_factory: pytest.TempPathFactory, windows: bytes, table: bytes) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / "fuzzed-dataset.json").write_bytes(table)
    check_fuzzed(folder / "fuzzed-trace.csv", windows, "servegen")


def test_public_client(shared_dir: Path) -> None:
    """2016 windows; each gets the number of requests that its rate says."""
    path = shared_dir / "traces/servegen/language_m-large_chunk-103-trace.csv"
    with path.open() as file:
        windows = [(int(row[0]), round(float(row[1]) * 600)) for row in csv.reader(file)]
    assert len(windows) == 2016
    trace = drawn(path)
    assert trace.num_requests == sum(number for _, number in windows)
    assert trace.skipped == trace.unknown_keys == {}
    # The first request is at 0 of the trace, in the first window.
    first_s = next(start for start, number in windows if number)
    arrival_ns = np.array(column(trace, "arrival_ns"))
    offsets = itertools.accumulate(number for _, number in windows)
    ends = {start: end for (start, _), end in zip(windows, offsets, strict=True)}
    for start, number in windows:
        inside = arrival_ns[ends[start] - number : ends[start]]
        if number:
            assert (start - first_s - 600) * S < inside[0] <= inside[-1]
            assert inside[-1] <= (start - first_s + 600) * S
    summary = describe(trace)
    assert 0 < summary.prompt.p50 <= summary.prompt.max
    # The mean of the distributions, weighted by requests, within 5 standard errors.
    table = json.loads((path.parent / path.name.replace("trace.csv", "dataset.json")).read_text())
    for field, measured in (("input_tokens", summary.prompt), ("output_tokens", summary.output)):
        total = variance = 0.0
        for start, number in windows:
            pmf = json.loads(_as_json(table[str(start // 21600 * 21600)][field]))
            mean = sum(int(tokens) * share for tokens, share in pmf.items())
            total += number * mean
            variance += number * sum((int(t) - mean) ** 2 * share for t, share in pmf.items())
        n = trace.num_requests
        assert abs(measured.mean - total / n) < 5 * variance**0.5 / n


def _as_json(dict_text: str) -> str:
    entries = [entry.split(": ") for entry in dict_text.strip("{}").split(", ") if entry]
    return json.dumps({tokens: float(share) for tokens, share in entries})


def test_compressed_pair(tmp_path: Path) -> None:
    path = client(tmp_path)
    plain = column(drawn(path), "num_prompt_tokens")
    for name in ("c-trace.csv", "c-dataset.json"):
        write(tmp_path / f"{name}.gz", (tmp_path / name).read_bytes())
        (tmp_path / name).unlink()
    assert sorted(set(column(drawn(tmp_path), "num_prompt_tokens"))) == sorted(set(plain))
    shutil.rmtree(tmp_path)
