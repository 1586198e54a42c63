"""Results appear whole or not at all, and nobody else's files are touched."""

from pathlib import Path

import pytest

from kvtwin.analysis.output_dir import check_output_dir, replacing
from kvtwin.traces import UserError


def write(out: Path, *, force: bool = False, text: str = "new") -> None:
    with replacing(out, force=force) as staging:
        (staging / "run.json").write_text(text)


def everything(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def test_missing_parents_are_made(tmp_path: Path) -> None:
    write(tmp_path / "a" / "b")
    assert everything(tmp_path) == ["a", "a/b", "a/b/run.json"]


def test_an_empty_directory_is_taken(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out")
    assert everything(tmp_path) == ["out", "out/run.json"]


def test_results_are_not_replaced_without_force(tmp_path: Path) -> None:
    write(tmp_path / "out", text="old")
    with pytest.raises(UserError, match=r"out is not empty; use --force"):
        write(tmp_path / "out")
    assert (tmp_path / "out" / "run.json").read_text() == "old"
    assert everything(tmp_path) == ["out", "out/run.json"]


def test_force_replaces_results_completely(tmp_path: Path) -> None:
    write(tmp_path / "out", text="old")
    (tmp_path / "out" / "paged").mkdir()
    (tmp_path / "out" / "paged" / "timeline.parquet").write_text("old")
    write(tmp_path / "out", force=True)
    assert (tmp_path / "out" / "run.json").read_text() == "new"
    assert everything(tmp_path) == ["out", "out/run.json"]


def test_force_does_not_replace_a_directory_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds no comparison.json or run.json"):
        check_output_dir(tmp_path, force=True)
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("foreign", ["notes.txt", "paged/notes.txt"])
def test_force_does_not_delete_a_foreign_file(tmp_path: Path, foreign: str) -> None:
    out = tmp_path / "out"
    write(out, text="old")
    (out / foreign).parent.mkdir(exist_ok=True)
    (out / foreign).write_text("mine")
    with pytest.raises(UserError, match=rf"holds {foreign}, which kvtwin did not write"):
        write(out, force=True)
    assert (out / foreign).read_text() == "mine"
    assert (out / "run.json").read_text() == "old"


def test_a_foreign_file_that_comes_during_the_run_survives(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def meet_a_newcomer() -> None:
        with replacing(out, force=True) as staging:
            (staging / "run.json").write_text("new")
            (out / "notes.txt").write_text("mine")

    write(out, text="old")
    with pytest.raises(UserError, match=r"notes.txt"):
        meet_a_newcomer()
    assert everything(tmp_path) == ["out", "out/notes.txt", "out/run.json"]


def test_force_does_not_follow_links(tmp_path: Path) -> None:
    write(tmp_path / "out")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"holds link"):
        write(tmp_path / "out", force=True)


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with replacing(tmp_path / "a" / "b", force=False) as staging:
            (staging / "run.json").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert everything(tmp_path) == []


def test_a_failure_keeps_the_earlier_results(tmp_path: Path) -> None:
    def fail() -> None:
        with replacing(tmp_path / "out", force=True):
            raise RuntimeError

    write(tmp_path / "out", text="old")
    with pytest.raises(RuntimeError):
        fail()
    assert everything(tmp_path) == ["out", "out/run.json"]
    assert (tmp_path / "out" / "run.json").read_text() == "old"


def test_a_file_is_no_output_directory(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UserError, match=r"out is not a directory"):
        write(tmp_path / "out", force=True)


def test_a_parent_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    # A file in the way fails for every user, root too, unlike permissions.
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match=r"file/a/out cannot be written: .*; choose another --out"):
        write(tmp_path / "file" / "a" / "out")


def test_a_refused_rename_is_reported_and_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    write(out, text="old")
    rename = Path.rename

    def refuse_staging(self: Path, target: Path) -> Path:
        if self.name.endswith(".partial"):
            raise PermissionError(13, "Permission denied")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse_staging)
    with pytest.raises(UserError, match=r"cannot be written: Permission denied"):
        write(out, force=True)
    assert everything(tmp_path) == ["out", "out/run.json"]
    assert (out / "run.json").read_text() == "old"
