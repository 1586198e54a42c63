"""The report of a validation: the verdict first, everything that failed, and one page that needs nothing else."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fabricated import write_run

from kvtwin.analysis.validation import write_validation_report
from kvtwin.analysis.validation_cells import number_cell, verdict
from kvtwin.gpu.twin.validation import PolicyValidation, Prediction, Validation
from kvtwin.sim.cost import TOTALS
from kvtwin.sim.run_directory import write_steps
from kvtwin.traces import UserError

MAX_REPORT_BYTES = 3 * 2**20
POLICIES = ("paged", "orca-max")


def predictions(policy: str, makespan: float) -> tuple[Prediction, ...]:
    return (
        Prediction(policy, "decisions", "decisions that differ", 0, 0, "decisions", 0, "torch"),
        Prediction(policy, "time", "makespan", 4000.0, makespan, "ms", 800.0, "torch", noise=31.0),
        Prediction(policy, "time", "mean step time error", 7.5, 9.25, "%", None, "torch"),
    )


def validation(*parts: PolicyValidation, **changed: Any) -> Validation:
    return Validation(
        **{
            "command": "kvtwin validate trace.csv --policies paged,orca-max <&>",
            "device": "a processor",
            "versions": {"kvtwin": "0.1.0", "torch": "2.13.0"},
            "shape": {
                "model": "OPT-13B",
                "num_layers": 4,
                "num_heads": 8,
                "num_kv_heads": 8,
                "head_dim": 64,
                "dtype": "float32",
                "block_size": 16,
            },
            "trace": {"name": "trace", "num_requests": 3},
            "cost": {"name": "roofline", "calibrated": False},
            "prediction_sha256": "0123456789abcdef" * 4,
            "policies": parts,
            "notes": ("not measured on a GPU",),
        }
        | changed
    )


def part(policy: str, makespan: float = 4200.0, findings: tuple[str, ...] = ()) -> PolicyValidation:
    return PolicyValidation(
        policy,
        "torch",
        predictions(policy, makespan),
        {"num_instants": 7, f"{policy}_slots": 1234},
        findings,
        f"predicted/{policy}",
        f"executed/{policy}",
    )


def write(out: Path, made: Validation) -> str:
    for policy in POLICIES:
        for side in ("predicted", "executed"):
            write_run(out / side / policy, policy)
        steps = np.arange(1, 30, dtype=np.int64) * 1_000_000
        columns = dict.fromkeys(("start_ns", *TOTALS, "predicted_ns"), steps)
        write_steps(
            out / "executed" / policy / "steps.parquet",
            {
                **columns,
                "measured_ns": 2 * steps,
                "repeat_ns": None if policy == "paged" else steps,
            },
        )
    made.save(out / "validation.json")
    write_validation_report(out)
    return (out / "report.html").read_text()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("validation")
    return write(out, validation(part("paged"), part("orca-max")))


def test_the_page_stands_alone(page: str) -> None:
    assert len(page) < MAX_REPORT_BYTES
    assert re.findall(r'(?:src|href)="(?!data:)[^"]*"', page) == []
    assert page.count('src="data:image/svg+xml;base64,') == 2
    assert page.count('src="data:image/png;base64,') == 1


def test_the_verdict_stands_first(page: str) -> None:
    top = page[: page.index("<h2>")]
    for words in (
        "<h1>All 4 judged predictions of 2 policies hold, executed with torch on a processor.</h1>",
        "4 layers, 8 query and 8 KV heads of 64, float32",
        "roofline (UNCALIBRATED)",
        "sha256 0123456789abcdef<",
        "not measured on a GPU",
    ):
        assert words in top, words


def test_every_prediction_has_a_row(page: str) -> None:
    text = re.sub(r"</?t[dr][^>]*>", "|", page)
    for policy in POLICIES:
        row = f"{policy}||makespan||4,000||4,200||200||ms||800||31||torch||pass"
        assert row in text
        assert (
            f"{policy}||mean step time error||7.5||9.25||1.75||%||-||-||torch||not judged" in text
        )
    assert "instants||7||7|" in text
    assert "paged slots||1,234||-|" in text
    assert "paged,orca-max &lt;&amp;&gt;</code>" in page


def test_failures_and_findings_are_told(tmp_path: Path) -> None:
    found = part("orca-max", findings=("step 3: slot 7 holds poison <?>",))
    text = write(tmp_path, validation(part("paged", makespan=4801.0), found))
    assert (
        "FAILED: 1 of 4 judged predictions failed, first paged: makespan; the audit has findings (1 listed); "
        "executed with torch on a processor." in text
    )
    assert "step 3: slot 7 holds poison &lt;?&gt;" in text
    assert text.count(">FAIL<") == 3


def test_nothing_validated_is_no_success() -> None:
    assert verdict(validation().to_dict()).startswith("FAILED: nothing was validated")


def test_without_directories_there_are_no_figures(tmp_path: Path) -> None:
    bare = PolicyValidation("paged", "cuda", predictions("paged", 4000.0), {})
    validation(bare).save(tmp_path / "validation.json")
    write_validation_report(tmp_path)
    assert "<img" not in (tmp_path / "report.html").read_text()


def test_what_is_missing_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"validation\.json cannot be read: No such file"):
        write_validation_report(tmp_path)
    write(tmp_path, validation(part("paged")))
    (tmp_path / "executed" / "paged" / "steps.parquet").unlink()
    with pytest.raises(UserError, match=r"executed/paged has no steps\.parquet"):
        write_validation_report(tmp_path)


def test_the_same_validation_gives_the_same_bytes(page: str, tmp_path: Path) -> None:
    assert write(tmp_path, validation(part("paged"), part("orca-max"))) == page


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (None, "-"),
        (0, "0"),
        (-1234567.0, "-1,234,567"),
        (0.000123456, "0.0001235"),
        (12345.678, "12,346"),
    ],
)
def test_numbers(value: float | None, cell: str) -> None:
    assert number_cell(value) == cell


def test_a_broken_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "validation.json").write_text("{")
    with pytest.raises(UserError, match="is not valid JSON"):
        write_validation_report(tmp_path)
