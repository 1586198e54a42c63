"""What people see at a terminal or through a pipe."""

import io

import pytest
from fabricated import SHARES, comparison, summary
from rich.console import Console

from kvtwin.analysis.notices import notices
from kvtwin.analysis.run_block import run_lines
from kvtwin.analysis.table import (
    WIDTH_COLUMNS,
    memory_table,
    print_comparison,
    print_table,
    request_table,
)


def printed(capsys: pytest.CaptureFixture[str], *summaries: dict[str, object]) -> list[str]:
    facts = comparison(*summaries) | {"verdict": "The verdict " + "x" * 200}
    print_comparison(facts, notices(facts), "out/r.html")
    return capsys.readouterr().out.splitlines()


def cells(lines: list[str], heading: str, policy: str) -> list[str]:
    """The numbers of `policy` in the table that begins with `heading`."""
    start = next(i for i, line in enumerate(lines) if line.startswith(heading))
    return next(line.split()[1:] for line in lines[start:] if line.startswith(policy))


def test_memory_columns() -> None:
    headings = [column.header for column in memory_table([summary("paged")]).columns]
    assert headings == [
        "policy",
        "running",
        "most",
        "live",
        "reserved",
        "internal",
        "rounding",
        "cached",
        "external",
        "free",
        "largest\nrun",
    ]


def test_request_columns() -> None:
    headings = [column.header for column in request_table([summary("paged")]).columns]
    assert headings == [
        *("policy", "preempt", "rejected", "clipped", "tok/s"),
        *("TTFT\np50", "TTFT\np99", "TPOT\np50", "TPOT\np99", "ITL\np99"),
    ]


def test_numbers_land_in_their_columns(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(
        capsys,
        *(summary(policy) for policy in SHARES if policy != "paged"),
        summary("paged", preemptions=90384, num_rejected=1, num_clipped=2),
    )
    assert cells(lines, "Mean requests running", "paged") == (
        ["34.2", "41", "95.0", "1.0", "2.0", "0.0", "0.0", "1.0", "1.0", "50.0"]
    )
    assert cells(lines, "Requests", "paged") == (
        ["90,384", "1", "2", "1,234", "100", "950", "100", "950", "950"]
    )


def test_an_hour_of_latency_fits_into_the_width(capsys: pytest.CaptureFixture[str]) -> None:
    hour = {"mean": 4_530_598.2, "p50": 4_530_598.2, "p99": 4_530_598.2}
    slow = summary("orca-max", policy="static-iteration", ttft_ms=hour, preemptions=90_384)
    lines = printed(capsys, slow)
    first, behind = (
        next(i for i, line in enumerate(lines) if line.startswith(start))
        for start in ("Mean requests running", "TTFT:")
    )
    tables = lines[first:behind]
    assert max(map(len, tables)) <= WIDTH_COLUMNS
    assert "4,530,598" in cells(lines, "Requests", "static-iteration")


def test_nothing_is_cut_off_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    year = {"mean": 3.1e10, "p50": 3.1e10, "p99": 3.1e10}
    extreme = summary("paged", policy="package.module:" + "C" * 40, ttft_ms=year, itl_ms=year)
    lines = printed(capsys, extreme)
    assert not any("…" in line for line in lines)
    assert cells(lines, "Requests", extreme["policy"]).count("31,000,000,000") == 3


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_columns_that_do_not_fit_follow_below(width: int) -> None:
    table = memory_table([summary("paged", policy="vllm-v0-prefix-caching"), summary("orca-max")])
    file = io.StringIO()
    print_table(Console(file=file, width=width, force_terminal=False), table)
    text = file.getvalue()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    assert text.count("Mean requests running") == 1
    rows = [line.split() for line in text.splitlines() if line.startswith("vllm-v0-prefix-caching")]
    assert [number for row in rows for number in row[1:]] == (
        ["34.2", "41", "95.0", "1.0", "2.0", "0.0", "0.0", "1.0", "1.0", "50.0"]
    )
    assert (len(rows) > 1) == (width < 120)


def test_what_was_run_and_assumed_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, summary("paged"))
    assert lines[0].startswith("OPT-13B on A100-40GB: max_model_len 32")
    assert "Note: a note about windows" in lines
    assert lines.index("Limited by max_num_seqs: none") < lines.index("Note: a note about windows")


def test_undefined_latencies_are_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    undefined = {"mean": None, "p50": None, "p99": None}
    lines = printed(capsys, summary("paged", tpot_ms=undefined, largest_free_run_share=None))
    assert cells(lines, "Requests", "paged")[-3:-1] == ["-", "-"]
    assert cells(lines, "Mean requests running", "paged")[-1] == "-"


def test_the_verdict_is_the_last_line_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, summary("paged"))[-1] == "The verdict " + "x" * 200


def test_uncalibrated_latencies_are_stamped(capsys: pytest.CaptureFixture[str]) -> None:
    assert any(
        "latencies in ms, UNCALIBRATED" in line for line in printed(capsys, summary("paged"))
    )
    fitted = printed(capsys, summary("paged", calibrated=True))
    assert not any("UNCALIBRATED" in line for line in fitted)


def test_run_block_has_the_names_of_vllm_bench() -> None:
    block = run_lines(
        summary("paged", preemptions=7, recomputed_tokens=1234, num_output_tokens=1234567)
    )
    values = dict(line.rsplit(":", 1) for line in block if ":" in line and "(" not in line[-3:])
    for label, value in {
        "Successful requests": "3",
        "Total generated tokens": "1,234,567",
        "Output token throughput (tok/s)": "1,234.50",
        "Preemptions": "7",
        "Recomputed tokens": "1,234",
        "Queue": "saturated",
        "Most in use at any time (%)": "96.00",
        "Mean TTFT (ms)": "120",
        "P99 E2EL (ms)": "950",
        "P50 Queue (ms)": "-",
        "Live (%)": "95.00",
        "Free (%)": "1.00",
    }.items():
        assert values[label].strip() == value, label
    assert any("UNCALIBRATED" in line for line in block)


def test_run_block_says_how_the_queue_grew() -> None:
    waiting = {"waiting_at_half": 1200, "waiting_at_last_arrival": None}
    block = run_lines(summary("paged", saturated=False, overloaded=True, **waiting))
    found = [line.split()[-1] for line in block if "aiting at" in line or "still growing" in line]
    assert found == ["1,200", "-", "yes"]
    unknown = dict.fromkeys(waiting)
    block = run_lines(summary("paged", saturated=False, **unknown))
    found = [line.split()[-1] for line in block if "aiting at" in line or "still growing" in line]
    assert found == ["-", "-", "-"]


def test_run_block_of_a_fitted_model_is_not_stamped() -> None:
    assert not any("UNCALIBRATED" in line for line in run_lines(summary("paged", calibrated=True)))


def test_swaps_are_shown_where_there_are_any(capsys: pytest.CaptureFixture[str]) -> None:
    swapping = {
        "num_groups_out": 1700,
        "num_blocks_out_and_in": 54321,
        "num_bytes_out_and_in": 5 * 2**29,
    }
    swapped = summary("paged", policy="vllm-v0", preemptions=1801, swapping=swapping)
    lines = printed(capsys, swapped, summary("orca-max", preemptions=9))
    assert cells(lines, "Preemptions, and what", "vllm-v0") == ["1,801", "1,700", "54,321", "2.50"]
    assert cells(lines, "Preemptions, and what", "orca-max") == ["9", "-", "-", "-"]
    none = summary("paged", swapping=dict.fromkeys(swapping, 0))
    assert not any("swapped" in line for line in printed(capsys, none, summary("orca-max")))


def test_groups_have_lines_of_their_own() -> None:
    sharing = {"saved_share_of_blocks": 0.125, "num_copied_blocks": 1234}
    swapping = {
        "num_groups_out": 17,
        "num_blocks_out_and_in": 4321,
        "num_bytes_out_and_in": 5 * 2**29,
        "num_recomputed_for_want_of_host": 3,
        "waited_ns": 2_500_000_000,
        "host_peak_used_share": 0.75,
    }
    block = run_lines(summary("paged", sharing=sharing, swapping=swapping))
    plain = run_lines(summary("paged"))
    own = [line.rsplit(maxsplit=1) for line in block if line not in plain]
    assert own == [
        ["Blocks saved by sharing (%):", "12.50"],
        ["Blocks copied on write:", "1,234"],
        ["Groups swapped out:", "17"],
        ["Blocks swapped out and in:", "4,321"],
        ["Swapped out and in, GiB:", "2.50"],
        ["Recomputed because the host was full:", "3"],
        ["Waited for swaps, uncalibrated link (s):", "2.50"],
        ["Most of the host's pool in use (%):", "75.00"],
    ]
