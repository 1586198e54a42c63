"""The report: one page that needs nothing else."""

import base64
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from fabricated import comparison, write_run, write_runs

from kvtwin.analysis.frames import read_run
from kvtwin.analysis.parts import PARTS
from kvtwin.analysis.report import write_report
from kvtwin.traces import UserError

MAX_REPORT_BYTES = 3 * 2**20


@pytest.fixture(scope="module")
def page_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report")
    summaries = write_runs(out, num_clipped=2)
    write_run(out / "cache-or-not" / "no-cache", "orca-max")
    write_run(out / "cache-or-not" / "paged", "paged")
    write_report(comparison(*summaries, num_clipped=2), out)
    return out


def test_the_page_stands_alone(page_dir: Path) -> None:
    page = (page_dir / "report.html").read_text()
    assert len(page) < MAX_REPORT_BYTES
    assert re.findall(r'(?:src|href)="(?!data:)[^"]*"', page) == []
    assert "http" not in re.sub(r"base64,[A-Za-z0-9+/=]+", "", page)


def test_every_figure_is_on_the_page_and_beside_it(page_dir: Path) -> None:
    page = (page_dir / "report.html").read_text()
    inline = [base64.b64decode(found) for found in re.findall(r'base64,([^"]+)"', page)]
    names = ("parts.svg", "parts-over-time.svg", "memory-map.png", "cache-or-not.svg")
    assert inline == [(page_dir / name).read_bytes() for name in names]


def test_the_first_screen_answers(page_dir: Path) -> None:
    page = (page_dir / "report.html").read_text()
    top = page[: page.index("<h2>")]
    for words in (
        "<h1>paged keeps most of it.</h1>",
        "OPT-13B",
        "A100-40GB",
        "64 token slots = 4 blocks x 16",
        "<b>Clipped</b><span>2 of 3 requests (shortened when generated)</span>",
        "<b>Overloaded</b><span>saturated",
        "<b>Uncalibrated</b><span>all policies",
        "<b>None</b><span>Rejected · Skipped",
        '<p class="lead">Nobody waited for room in any of them.</p>',
    ):
        assert words in top, words


@pytest.mark.parametrize(("cost", "told"), [("constant:45000000", True), ("roofline", False)])
def test_other_step_times_are_told_where_there_are_other_ones(
    cost: str, told: bool, tmp_path: Path
) -> None:
    for name in ("no-cache", "paged"):
        write_run(tmp_path / "cache-or-not" / name, "paged")
    facts = comparison(write_run(tmp_path / "paged", "paged"))
    write_report(facts | {"config": facts["config"] | {"cost": cost}}, tmp_path)
    page = (tmp_path / "report.html").read_text()
    caption = page[page.index("One request on its own") :]
    assert caption.startswith("One request on its own; its step times come from") == told


def test_peaks_and_recomputed_tokens_are_in_the_table(page_dir: Path, tmp_path: Path) -> None:
    page = (page_dir / "report.html").read_text()
    headings = re.findall(r"<th[^>]*>([^<]*)</th>", page)
    for before, heading in (("free %", "peak %"), ("preemptions", "recomputed tokens")):
        assert headings[headings.index(before) + 1] == heading
    made = write_run(
        tmp_path / "paged", "paged", peak_used_share=0.123, preemptions=7, recomputed_tokens=4567
    )
    write_report(comparison(made), tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "<td>1.0</td><td>12.3</td>" in page
    assert "<td>7</td><td>4,567</td>" in page


def test_swaps_are_in_the_table_where_there_are_any(tmp_path: Path) -> None:
    """Beside the preemptions; a policy that cannot swap has dashes."""
    for num_groups, shown in ((17, True), (0, False)):
        swapping = {
            "num_groups_out": num_groups,
            "num_blocks_out_and_in": 4321,
            "num_bytes_out_and_in": 5 * 2**29,
        }
        out = tmp_path / str(num_groups)
        made = write_run(out / "paged", "paged", preemptions=23, swapping=swapping)
        plain = write_run(out / "orca-max", "orca-max", preemptions=7)
        write_report(comparison(made, plain), out)
        page = (out / "report.html").read_text()
        assert ("<td>23</td><td>17</td><td>4,321</td><td>2.50</td><td>0</td>" in page) is shown
        assert ("<td>7</td><td>-</td><td>-</td><td>-</td><td>0</td>" in page) is shown
        assert ("<th>groups swapped out</th><th>blocks swapped out and in</th>" in page) is shown


def test_the_terms_of_the_pool_and_the_notes_are_shown(page_dir: Path) -> None:
    page = (page_dir / "report.html").read_text()
    assumptions = page[page.index("<h2>Assumptions") :]
    assert "<li>a note about windows</li>" in assumptions
    assert "<td>gpu_memory</td><td>+3.000</td><td>a data sheet</td>" in assumptions
    assert "<td>weights</td><td>-3.000</td><td>a count</td>" in assumptions
    assert "4 blocks of 16 tokens, 16,384 B each" in assumptions


def test_latencies_are_defined_and_stamped(page_dir: Path) -> None:
    page = (page_dir / "report.html").read_text()
    latency = page[page.index("<h2>Latency") :]
    assert 'class="stamp">UNCALIBRATED' in latency
    for name in ("TTFT", "TPOT", "ITL", "E2EL"):
        assert f"<b>{name}</b>, " in latency


def test_a_calibrated_report_has_no_stamp(tmp_path: Path) -> None:
    fitted = write_run(tmp_path / "paged", "paged", calibrated=True)
    facts = comparison(fitted) | {"latency_calibrated": True, "latency_note": None}
    write_report(facts, tmp_path)
    assert "UNCALIBRATED" not in (tmp_path / "report.html").read_text()


def test_same_numbers_same_bytes(page_dir: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "cache-or-not" / "no-cache", "orca-max")
    write_run(tmp_path / "cache-or-not" / "paged", "paged")
    write_report(comparison(*write_runs(tmp_path, num_clipped=2), num_clipped=2), tmp_path)
    for path in page_dir.glob("*.*"):
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path.name


def test_svgs_are_whole(page_dir: Path) -> None:
    for path in page_dir.glob("*.svg"):
        assert ET.parse(path).getroot().tag.endswith("svg")


def test_text_from_outside_is_escaped(tmp_path: Path) -> None:
    made = write_run(tmp_path / "paged", "paged")
    write_report(comparison(made, name="<script>alert(1)</script>"), tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_an_incomplete_run_directory_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "paged", "paged")
    (tmp_path / "paged" / "timeline.parquet").unlink()
    with pytest.raises(UserError, match=r"paged has no timeline.parquet"):
        read_run(tmp_path / "paged")


def test_policies_without_pictures_are_named(tmp_path: Path) -> None:
    empty = dict.fromkeys((part.name for part in PARTS), 0.0) | {"free": 1.0}
    made = [
        write_run(tmp_path / "orca-max", "orca-max", shares=empty, mean_running=0.0),
        write_run(tmp_path / "paged", "paged"),
    ]
    write_report(comparison(*made, saturated=False), tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "no request was ever held in the pool: orca-max." in page
    assert "0.50 requests/s for 4 s" in page
