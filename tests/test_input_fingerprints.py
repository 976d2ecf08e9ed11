"""Fingerprints of files and folders, and the changes that they show."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest
from blocked_files import KINDS, make

from app import input_fingerprints
from app.input_fingerprints import InputForbidden, InputMissing, InputUnread, content_changed, look, may_be_read


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


def test_bytecode_in_a_folder_is_no_change(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("VALUE = 1")
    seen = look(str(tmp_path))
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "code.pyc").touch()
    assert not content_changed(seen)
    (tmp_path / "code.py").write_text("VALUE = 2")
    assert content_changed(seen)


def test_a_missing_input_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputMissing, match="none cannot be read: No such file or directory"):
        look(str(tmp_path / "none"))


def test_only_files_inside_the_folders_may_be_read(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data2").mkdir()
    (tmp_path / "data" / "link").symlink_to(tmp_path / "data2")
    allowed = [str(tmp_path / "data")]
    assert may_be_read(f"{tmp_path}/data/a/b", allowed) and may_be_read(allowed[0], allowed)
    for path in ("data2", "data/../data2", "data/link/a", ""):
        assert not may_be_read(f"{tmp_path}/{path}", allowed)
    assert may_be_read("/etc/passwd", ["/"]) and not may_be_read("/etc/passwd", [])


@pytest.mark.parametrize("kind", KINDS)
def test_only_files_and_folders_are_read(kind: str, tmp_path: Path) -> None:
    """A device never ends, and a FIFO blocks until a writer opens it."""
    path = make(kind, tmp_path)
    if said := KINDS[kind]:
        with pytest.raises(InputMissing, match=said):
            look(path)
        with pytest.raises(InputMissing, match=said):
            input_fingerprints.hash_of(path)
    else:
        seen = look(path)
        assert not content_changed(seen)
        (Path(path) / "FIFO").unlink()
        assert content_changed(seen)


def test_special_files_in_a_folder_count_by_kind_and_not_by_time(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    seen = look(str(tmp_path))
    os.utime(tmp_path / "pipe", (5, 5))
    assert look(str(tmp_path)) == {**seen, "modified": 0.0}
    (tmp_path / "pipe").unlink()
    (tmp_path / "pipe").touch()
    assert content_changed(seen)


def test_a_file_that_grows_is_read_up_to_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a file that grows faster than it is read would never end."""
    log, reading = tmp_path / "log", input_fingerprints.open_file
    log.write_bytes(b"one")

    def open_late(path: str) -> object:
        with log.open("ab") as file:
            file.write(b"more")
        return reading(path)

    monkeypatch.setattr(input_fingerprints, "open_file", open_late)
    assert look(str(log))["sha256"] == sha256(b"one").hexdigest()


def test_a_folder_of_too_many_files_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_fingerprints, "MAX_FILES", 4)
    for number in range(4):
        (tmp_path / str(number)).touch()
    assert look(str(tmp_path))["files"] == 4
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputUnread, match="holds more than 4 files and folders"):
        look(str(tmp_path))


def test_files_that_vanish_from_a_folder_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("one")
    without = look(str(tmp_path))
    (tmp_path / "folder").mkdir()
    listing = os.scandir

    def scandir(path: str) -> object:
        found = listing(path)
        if path == str(tmp_path / ""):
            (tmp_path / "folder").rmdir()
        return found

    monkeypatch.setattr(os, "scandir", scandir)
    assert look(str(tmp_path))["sha256"] == without["sha256"]


def test_files_outside_the_folders_are_neither_counted_nor_hashed(tmp_path: Path) -> None:
    """Not even through a link in them: size and hash would reveal a secret's content."""
    inside, secret = tmp_path / "data", tmp_path / "secret"
    inside.mkdir()
    (inside / "link").symlink_to(secret)
    (inside / "folder").symlink_to(tmp_path)
    seen = []
    for content in ("one", "three"):
        secret.write_text(content)
        seen.append(look(str(inside), [str(inside)]))
        for path in (secret, inside / "link", tmp_path / "none"):
            with pytest.raises(InputForbidden, match="is in no folder that STAGETREE_STUDY_FILES names"):
                look(str(path), [str(inside)])
    assert seen[0] == seen[1] and seen[0]["files"] == 2
    assert look(str(inside), [str(tmp_path)])["sha256"] != seen[0]["sha256"]
