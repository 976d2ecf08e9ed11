"""What trainers print is bounded, and says what was left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from assignments import stage, work

from app import processes as files_of_logs
from app.processes import shorten
from app.workers.warm import TrialLogs


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MOST_BYTES": 1000, "HEAD_BYTES": 100, "TAIL_BYTES": 200}.items():
        monkeypatch.setattr(files_of_logs, name, value)


def test_a_file_keeps_its_head_and_its_tail_and_its_writers_go_on(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    with path.open("ab", buffering=0) as writer:
        for number in range(200):
            writer.write(f"line {number}\n".encode())
            shorten(path)
        writer.write(b"the end\n")
    text = path.read_text()
    assert len(text) < 1100
    assert text.startswith("line 0\n") and text.endswith("line 199\nthe end\n")
    assert "bytes are left out: 1,000 are kept at most" in text
    assert all(line.startswith(("line ", "lin", "---", "the", "")) for line in text.splitlines())


def test_a_short_file_stays_and_a_missing_one_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "0.log"
    path.write_text("x" * 1000)
    shorten(path)
    assert path.read_text() == "x" * 1000
    shorten(tmp_path / "gone.log")
    assert "is not shortened" in caplog.text


def test_the_file_of_the_stage_under_way_is_kept_short(tmp_path: Path) -> None:
    logs = TrialLogs(tmp_path, "gpu0")
    logs.keep_short()
    files = logs.begin("chain", work(stage()), 0)
    assert files is not None
    with files.printed.open("a") as file:
        file.write("x" * 5000)
    logs.keep_short()
    assert files.printed.stat().st_size < 1000
