"""Reports of files that are not what a run leaves when it comes to its end."""

import json
from pathlib import Path

import pytest

from kvtwin.gpu.device_report import main, render


def test_a_run_killed_in_a_line_has_a_report_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        {"kind": "machine", "at_s": 0.0, "dry_run": True},
        {"kind": "error", "at_s": 1.0, "message": "read: RuntimeError: no memory"},
        {"kind": "end", "at_s": 2.0, "all_passed": False, "quick_check_complete": False},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    file = tmp_path / "run.jsonl"
    for cut in (text[:-1], text[:-30]):
        file.write_text(cut, encoding="utf-8")
        assert main([str(file)]) == 0
        printed = capsys.readouterr().out
        assert printed.splitlines() == "\n".join(render(lines[:2])).splitlines()
        assert "FAILED: read: RuntimeError: no memory" in printed
        assert "The run did not come to its end." in printed
    file.write_text(text, encoding="utf-8")
    assert main([str(file)]) == 0
    assert "The run did not come to its end." not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello\n", "line 1 is no JSON (Expecting value: line 1 column 1 (char 0))"),
        (b'{"kind": "end"}\n[1]\n', "line 2 is no object with a kind"),
        (b'{"kind": "check"}\n', "'backend'"),
        (b"\xff\n", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    ],
)
def test_another_file_is_refused_in_one_line(
    content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "other.jsonl"
    file.write_bytes(content)
    assert main([str(file)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith(f"{file}: not written by device_run.py: {message}; usage: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [([], "usage: "), (["none.jsonl"], "none.jsonl: No such file or directory; usage: ")],
)
def test_no_run_to_report_is_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith(message)
