"""Each planted fault still fits the kernels' source; `make mutants` runs the tests on them."""

import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "mutants"))

import verdicts
from catalogue import MUTANTS
from mutant import Mutant
from run_mutants import plant
from verdicts import Verdict, render

GPU = Path(__file__).parents[2] / "gpu"


@pytest.fixture
def gpu_copy(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__")
    return shutil.copytree(GPU, tmp_path / "gpu", ignore=ignored)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_fault_can_be_planted(mutant: Mutant, gpu_copy: Path) -> None:
    before = (gpu_copy / mutant.file).read_text()
    mutant.apply(gpu_copy)
    after = (gpu_copy / mutant.file).read_text()
    assert after != before
    compile(after, mutant.file, "exec")


def test_names_are_unique_and_every_kernel_has_faults() -> None:
    assert Counter(mutant.name for mutant in MUTANTS).most_common(1)[0][1] == 1
    files = {path.relative_to(GPU).as_posix() for path in (GPU / "kernels").glob("*.py")}
    # These two hold no kernel arithmetic: a value for a launch, and decode's other wrapper.
    files -= {"kernels/__init__.py", "kernels/launch.py", "kernels/contiguous_decode.py"}
    assert files <= {mutant.file for mutant in MUTANTS}


@pytest.mark.parametrize(("name", "old"), [("gone", "no such text"), ("often", "stride")])
def test_a_fault_whose_text_is_not_there_once_is_an_error(
    name: str, old: str, gpu_copy: Path
) -> None:
    with pytest.raises(ValueError, match=f"{name}: '{old}' occurs"):
        Mutant(name, "kernels/store_kv.py", old, "").apply(gpu_copy)


def test_the_planted_copy_is_apart_from_the_kernels(tmp_path: Path) -> None:
    mutant = MUTANTS[0]
    original = (GPU / mutant.file).read_text()
    planted = plant(mutant, GPU.parent, tmp_path / "place") / "kvtwin" / "gpu" / mutant.file
    assert planted.read_text() != original
    assert (GPU / mutant.file).read_text() == original


def test_the_report_counts_proved_survivors_apart() -> None:
    killed, survived = MUTANTS[:2]
    proved = next(mutant for mutant in MUTANTS if mutant.why_equivalent)
    found = [
        Verdict(killed, "tests/gpu/test_x.py::test_y", "assert 1 == 2", 1.0),
        Verdict(survived, "", "", 1.0),
        Verdict(proved, "", "", 1.0),
    ]
    text = render(found)
    assert "3 mutants: 1 killed, 1 equivalent, 1 survived: 50.0% of those that are faults." in text
    assert f"| {killed.name} | {killed.file} | test_x.py::test_y | assert 1 == 2 |" in text
    assert f"- {survived.name}: **not explained**" in text
    assert f"- {proved.name}: {proved.why_equivalent}" in text


def test_kills_are_kept_for_the_same_kernels_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "LAST_RUN", tmp_path / "out" / "mutants.json")
    with pytest.raises(SystemExit, match="run all mutants first"):
        verdicts.killed_before()
    killed, survived = (Verdict(MUTANTS[n], killer, "", 1.0) for n, killer in ((0, "a"), (1, "")))
    verdicts.save([killed, survived])
    assert verdicts.killed_before() == [killed]
    monkeypatch.setattr(verdicts, "kernels_hash", lambda: "others")
    with pytest.raises(SystemExit, match="the kernels have changed"):
        verdicts.killed_before()
