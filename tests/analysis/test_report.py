"""The report: one page that needs nothing else."""

import base64
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from fabricated import comparison, timeline, write_run, write_runs
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from kvtwin.analysis.figures import cache_or_not
from kvtwin.analysis.frames import read_run
from kvtwin.analysis.metrics import parts_over_time
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
        "<b>Rejected</b>none",
        "<b>Clipped</b>2 of 3 requests (shortened when generated)",
        "<b>Overloaded</b>saturated",
        "<b>Uncalibrated</b>all policies",
    ):
        assert words in top, words


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


def test_parts_have_distinct_colours() -> None:
    # Apart in lightness or hue by more than an eye could miss, free being the lightest.
    rgbs = [to_rgb(part.colour) for part in PARTS]
    for i, one in enumerate(rgbs):
        for other in rgbs[:i]:
            assert sum(abs(a - b) for a, b in zip(one, other, strict=True)) > 0.3
    assert max(rgbs, key=sum) == to_rgb(PARTS[-1].colour)
    assert PARTS[-1].name == "free"


def test_parts_over_time_by_hand() -> None:
    parts = parts_over_time(timeline("contiguous"), 64)
    assert parts.edges_s.tolist() == [0, 1, 2, 3, 4]
    assert parts.shares[:, 0] == pytest.approx([0.6, 0.1, 0.05, 0, 0, 0.05, 0.2])


def test_cache_or_not_plots_tokens_time_and_bytes() -> None:
    time_ax, bytes_ax = Figure().subplots(1, 2)
    nothing = dict.fromkeys(
        ("live_slots", "reserved_slots", "internal_slots", "rounding_slots"), 0.0
    )
    without_cache = timeline("paged").assign(**nothing)
    held = {"live_slots": [2**20 - 5, 2**21, 3 * 2**20, 2**22], "reserved_slots": [5, 0, 0, 0]}
    with_cache = without_cache.assign(**held)
    cache_or_not.draw(
        without_cache,
        with_cache,
        time_ax,
        bytes_ax,
        kv_bytes_per_token=1024,
    )
    # Ten steps of one token in each of four rows of a second; 2**20 slots of 1 KiB are 1 GiB.
    assert [line.get_xydata().tolist() for line in time_ax.lines] == [
        [[10, 1], [20, 2], [30, 3], [40, 4]]
    ] * 2
    without, cached = bytes_ax.lines
    assert without.get_ydata().tolist() == [0, 0, 0, 0]
    assert cached.get_ydata().tolist() == [1, 2, 3, 4]


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
