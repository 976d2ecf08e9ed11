"""Fingerprints of files and folders, and the changes that they show."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest

from app import input_fingerprints
from app.input_fingerprints import InputMissing, content_changed, look, may_be_read


def test_a_small_file_is_its_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    seen = look(str(tmp_path / "a"))
    assert seen["sha256"] == sha256(b"one").hexdigest() and (seen["files"], seen["bytes"]) == (1, 3)
    os.utime(tmp_path / "a", (5, 5))
    assert not content_changed(seen)
    (tmp_path / "a").write_bytes(b"two")
    assert content_changed(seen)


def test_a_large_file_is_its_size_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_fingerprints, "SMALL", 2)
    (tmp_path / "a").write_bytes(b"one")
    seen = look(str(tmp_path / "a"))
    assert "sha256" not in seen and not content_changed(seen)
    os.utime(tmp_path / "a", (5, 5))
    assert content_changed(seen)


def test_a_folder_is_the_names_and_contents_in_it_wherever_it_lies(tmp_path: Path) -> None:
    for name in ("here", "there"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "a").write_text("one")
        (tmp_path / name / "nowhere").symlink_to("gone")
        (tmp_path / name / "folder").symlink_to("deep")
        (tmp_path / name / "deep" / "circle").symlink_to("..")
    here, there = (look(str(tmp_path / name)) for name in ("here", "there"))
    assert here["sha256"] == there["sha256"] and here["files"] == 3  # a folder behind a link is one of its own
    (tmp_path / "here" / "deep" / "a").rename(tmp_path / "here" / "deep" / "b")
    assert content_changed(here)


def test_what_python_compiles_in_a_folder_is_no_change(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("VALUE = 1")
    seen = look(str(tmp_path))
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "code.pyc").touch()
    assert not content_changed(seen)
    (tmp_path / "code.py").write_text("VALUE = 2")
    assert content_changed(seen)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputMissing, match="none cannot be read: No such file or directory"):
        look(str(tmp_path / "none"))


def test_only_what_is_in_the_folders_may_be_read_links_or_not(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data2").mkdir()
    (tmp_path / "data" / "link").symlink_to(tmp_path / "data2")
    allowed = [str(tmp_path / "data")]
    assert may_be_read(f"{tmp_path}/data/a/b", allowed) and may_be_read(allowed[0], allowed)
    for path in ("data2", "data/../data2", "data/link/a", ""):
        assert not may_be_read(f"{tmp_path}/{path}", allowed)
    assert may_be_read("/etc/passwd", ["/"]) and not may_be_read("/etc/passwd", [])
