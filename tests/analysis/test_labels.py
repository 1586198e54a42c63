"""Every number in text stands beside its own label."""

import re
from typing import Any

import pytest
from fabricated import GIB, comparison, distinct_summary
from rich.table import Table

from kvtwin.analysis.facts import header_lines, labelled_facts
from kvtwin.analysis.notices import notices
from kvtwin.analysis.report import render_page
from kvtwin.analysis.run_block import run_lines
from kvtwin.analysis.table import memory_table, print_comparison, request_table

DEFINITIONS = {
    "TTFT": "time to first token: first token minus arrival",
    "TPOT": "time per output token: (E2EL - TTFT) / (output tokens - 1), requests with at least 2",
    "ITL": "inter-token latency: every single gap between two tokens of a request",
    "E2EL": "end-to-end latency: last token minus arrival",
    "Queue": "queue time: first admission minus arrival",
}
LOADED_WINDOW = "from the first arrival until nobody waits any more and nobody will"


def facts(*summaries: dict[str, Any], **trace: Any) -> dict[str, Any]:
    """A comparison whose pool holds 2.5 GiB and whose trace holds 97 requests over 6 s."""
    arrivals = {"num_requests": 97, "span_s": 6.0}
    made = comparison(*summaries, saturated=False, **(arrivals | trace))
    pool = {
        "num_blocks": 41,
        "num_slots": 656,
        "kv_bytes_per_token": 2048,
        "pool_bytes": 5 * GIB // 2,
        "max_model_len": 333,
    }
    return made | {"pool": made["pool"] | pool}


def page(*summaries: dict[str, Any]) -> str:
    return render_page(facts(*summaries), {"parts.svg": b""})


def html_rows(html: str) -> list[list[str]]:
    """The text of each cell of each row; a cell over n columns n times."""
    rows = []
    for row in re.findall(r"<tr>(.*?)</tr>", html, flags=re.DOTALL):
        cells = re.findall(r"<t[hd]([^>]*)>(.*?)</t[hd]>", row, flags=re.DOTALL)
        rows.append([])
        for attributes, content in cells:
            colspan = re.search(r'colspan="(\d+)"', attributes)
            rows[-1] += [re.sub(r"<[^>]*>", "", content)] * (int(colspan[1]) if colspan else 1)
    return rows


def by_heading(table: Table) -> dict[str, list[str]]:
    return {str(column.header): list(map(str, column.cells)) for column in table.columns}


def test_run_block_line_by_line() -> None:
    block = [line for line in run_lines(distinct_summary("paged")) if line[0] not in "=-"]
    # 127.49 and 11.31: neither throughput can stand in the place of the other.
    assert {label: value.strip() for label, value in (line.split(":", 1) for line in block)} == {
        "Successful requests": "83",
        "Rejected requests": "14",
        "Clipped requests": "5",
        "Simulated duration (s)": "5.25",
        "Total input tokens": "9,901",
        "Total generated tokens": "10,111",
        "Request throughput (req/s)": "11.31",
        "Output token throughput (tok/s)": "127.49",
        "Mean running requests": "12.73",
        "Most running at any time": "39",
        "Preemptions": "23",
        "Recomputed tokens": "7,703",
        "Prefix hits (tokens)": "2,203",
        "Waiting at half of the arrival span": "29",
        "Waiting at the last arrival": "37",
        "Queue still growing at the last arrival": "yes",
        "Live (%)": "31.00",
        "Reserved (%)": "19.00",
        "Internal (%)": "17.00",
        "Rounding (%)": "13.00",
        "Cached (%)": "11.00",
        "External (%)": "6.00",
        "Free (%)": "3.00",
        "Most in use at any time (%)": "89.30",
        "Mean TTFT (ms)": "101",
        "P50 TTFT (ms)": "102",
        "P99 TTFT (ms)": "103",
        "Mean TPOT (ms)": "201",
        "P50 TPOT (ms)": "202",
        "P99 TPOT (ms)": "203",
        "Mean ITL (ms)": "301",
        "P50 ITL (ms)": "302",
        "P99 ITL (ms)": "303",
        "Mean E2EL (ms)": "401",
        "P50 E2EL (ms)": "402",
        "P99 E2EL (ms)": "403",
        "Mean Queue (ms)": "501",
        "P50 Queue (ms)": "502",
        "P99 Queue (ms)": "503",
        **DEFINITIONS,
        "Loaded window": LOADED_WINDOW,
    }


def test_memory_table_column_by_column() -> None:
    assert by_heading(memory_table([distinct_summary("one")])) == {
        "policy": ["one"],
        "running": ["12.7"],
        "most": ["39"],
        "live": ["31.0"],
        "reserved": ["19.0"],
        "internal": ["17.0"],
        "rounding": ["13.0"],
        "cached": ["11.0"],
        "external": ["6.0"],
        "free": ["3.0"],
        "largest\nrun": ["42.7"],
    }


def test_request_table_column_by_column() -> None:
    assert by_heading(request_table([distinct_summary("one")])) == {
        "policy": ["one"],
        "preempt": ["23"],
        "rejected": ["14"],
        "clipped": ["5"],
        "tok/s": ["127"],
        "TTFT\np50": ["102"],
        "TTFT\np99": ["103"],
        "TPOT\np50": ["202"],
        "TPOT\np99": ["203"],
        "ITL\np99": ["303"],
    }


def test_terminal_defines_the_latencies_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    result = facts(distinct_summary("one"))
    print_comparison(result, notices(result), "out/r.html")
    lines = capsys.readouterr().out.splitlines()
    for name in ("TTFT", "TPOT", "ITL"):
        assert f"{name}: {DEFINITIONS[name]}" in lines
    assert f"Loaded window: {LOADED_WINDOW}" in lines


def test_report_parts_column_by_column() -> None:
    heading, *rows = html_rows(page(distinct_summary("one"), distinct_summary("two")))[:3]
    numbers = {
        "mean running": "12.73",
        "most running": "39",
        "live %": "31.0",
        "reserved %": "19.0",
        "internal %": "17.0",
        "rounding %": "13.0",
        "cached %": "11.0",
        "external %": "6.0",
        "free %": "3.0",
        "peak %": "89.3",
        "largest free run, %": "42.7",
        "preemptions": "23",
        "recomputed tokens": "7,703",
        "prefix hits, %": "22.3",
        "rejected": "14",
        "clipped": "5",
    }
    for name, row in zip(("one", "two"), rows, strict=True):
        assert dict(zip(heading, row, strict=True)) == {"policy": name, **numbers}


def test_report_latencies_column_by_column() -> None:
    html = page(distinct_summary("one"))
    kinds, statistics, row = html_rows(html[html.index("<h2>Latency") :])[:3]
    # The first two headings reach over both rows.
    assert (kinds[:2], row[:2]) == (["policy", "output tok/s"], ["one", "127"])
    found = zip(kinds[2:], statistics, row[2:], strict=True)
    names = ("TTFT (ms)", "TPOT (ms)", "ITL (ms)", "E2EL (ms)", "Queue (ms)")
    assert {(kind, statistic): cell for kind, statistic, cell in found} == {
        (name, statistic): f"{i}0{j}"
        for i, name in enumerate(names, start=1)
        for j, statistic in enumerate(("mean", "p50", "p99"), start=1)
    }


def test_report_defines_latencies_and_parts() -> None:
    html = page(distinct_summary("one"))
    for name, meaning in DEFINITIONS.items():
        assert f"<b>{name}</b>, {meaning}." in html
    # Colour names of Okabe and Ito's palette: green, sky blue, vermilion, orange, purple.
    legend = re.findall(r'style="background: (\S+)"></span><b>(\w+)</b>: ([^<]*)</li>', html)
    assert {name: (colour, meaning) for colour, name, meaning in legend} == {
        "live": ("#009E73", "computed KV of unfinished requests"),
        "reserved": ("#56B4E9", "granted, will be written"),
        "internal": ("#D55E00", "granted as asked, never to be written"),
        "rounding": ("#E69F00", "granted beyond what was asked: powers of two, padding"),
        "cached": ("#CC79A7", "kept for reuse, held by no request"),
        "external": ("#4D4D4D", "free, but no use to the request that waits"),
        "free": ("#FAFAFA", "free and usable"),
    }


def test_report_ends_with_the_pool_in_gib() -> None:
    assert html_rows(page(distinct_summary("one")))[-1] == (
        ["KV pool", "2.500", "41 blocks of 16 tokens, 65,472,062 B each"]
    )


def test_facts_line_by_line() -> None:
    result = facts(distinct_summary("one"))
    pool = "656 token slots = 41 blocks x 16 = 2.50 GiB, from gpu_memory_utilization 0.92"
    shown = dict(labelled_facts(result))
    options = shown.pop("Policy options")
    assert shown == {
        "Model": "OPT-13B",
        "GPU": "A100-40GB",
        "KV pool": pool,
        "KV per token": "2,048 B",
        "KV type": "auto (16 bits)",
        "Longest request": "333 tokens",
        "Trace": "sharegpt-like (synthetic), 97 requests",
        "Arrivals": "16.00 requests/s for 6 s",
        "Step times": "roofline",
        "Limits": "max_num_seqs 256, max_num_batched_tokens 8,192",
    }
    assert options.startswith("admission full, watermark 0.01, growth_tokens 16, ")
    assert header_lines(result)[1] == f"Pool: {pool}; KV auto (16 bits)"


def test_every_notice_counts_its_own_kind() -> None:
    causes = ("memory", "max_num_seqs", "max_num_batched_tokens", "batch")
    shares = dict(zip(causes, (0.02, 0.43, 0.31, 0.17), strict=True))
    idle = {"idle_ns": 1_400_000_000, "busy_mean_running": 416.67}
    made = distinct_summary("one", mean_running=250.0, waiting_shares=shares, **idle)
    result = facts(made, skipped={"no output": 11})
    assert [(notice.kind, notice.text) for notice in notices(result)][:8] == [
        ("Rejected", "one: 14 of 97 requests"),
        ("Clipped", "one: 5 of 97 requests"),
        ("Skipped", "11 rows of the trace: no output"),
        (
            "Overloaded",
            "queue still growing at the last arrival (by uncalibrated step times); one: 37 waiting",
        ),
        (
            "Idle",
            "one: no request for 1.4 s (40.0 %) of the loaded window; in the rest 416.7 run on average, not 250.0",
        ),
        (
            "Next in line waited, of the loaded window",
            "one: for --max-num-seqs 43.0 %, --max-num-batched-tokens 31.0 %, the batch to end 17.0 %, memory 2.0 %",
        ),
        (
            "Limited by max_num_seqs",
            "one: 43.0 % of the loaded window, 250.0 of 256 run on average",
        ),
        ("Limited by max_num_batched_tokens", "one: 31.0 % of the loaded window"),
    ]
    generated = facts(distinct_summary("one"), num_clipped=2)
    assert notices(generated)[1].text == (
        "one: 5 of 97 requests (2 of them shortened when generated)"
    )


def test_only_who_rejected_or_clipped_is_named() -> None:
    rejecting = distinct_summary("one", num_clipped=0)
    clipping = distinct_summary("two", num_rejected=0)
    found = {notice.kind: notice.text for notice in notices(facts(rejecting, clipping))}
    assert found["Rejected"] == "one: 14 of 97 requests"
    assert found["Clipped"] == "two: 5 of 97 requests"
