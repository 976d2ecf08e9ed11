"""Fingerprints of undeclared files, patterns and variables, and the changes that they show."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from app import undeclared_inputs
from app.input_fingerprints import InputMissing
from app.undeclared_inputs import has_changed, record_undeclared, version_of, was_seen_on_this_machine


def test_a_large_undeclared_file_is_fingerprinted_by_size_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a hash of its times, each new copy would give a warning about other results."""
    monkeypatch.setattr(undeclared_inputs, "SMALL", 2)
    monkeypatch.setattr(undeclared_inputs, "PART", 4)
    file = tmp_path / "a"
    file.write_bytes(b"one, two, three")
    [seen] = record_undeclared([str(file), str(tmp_path / "gone")])
    os.utime(file, (5, 5))
    assert not has_changed(seen)
    for other in (b"One, two, three", b"one, two, threE", b"one, two,  three"):
        file.write_bytes(other)
        assert has_changed(seen), other


@pytest.mark.parametrize("pattern", ["*.png", "*/*.png"])
def test_many_undeclared_files_are_fingerprinted_by_names_and_samples(tmp_path: Path, pattern: str) -> None:
    folder = tmp_path / "a" if pattern == "*.png" else tmp_path
    names = [tmp_path / "a" / f"{number:03}.png" for number in range(200)]
    names[0].parent.mkdir()
    for name in names:
        name.write_bytes(b"1")
    [seen] = record_undeclared([f"{folder}/{pattern}"])
    assert seen["found"] and seen["files"] == 200 and "sha256" not in seen
    (tmp_path / "a" / "log.txt").touch()
    os.utime(names[0], (5, 5))
    assert not has_changed(seen)
    names[0].write_bytes(b"2")
    assert has_changed(seen)
    names[0].write_bytes(b"1")
    (tmp_path / "a" / "another.png").touch()
    assert has_changed(seen)
    (tmp_path / "a" / "another.png").unlink()
    assert not has_changed(seen)
    names[1].unlink()
    assert has_changed(seen)
    for name in names[2:] + names[:1]:
        name.unlink()
    with pytest.raises(InputMissing):
        has_changed(seen)
    assert record_undeclared([f"{folder}/{pattern}"]) == []


def test_an_undeclared_variable_is_fingerprinted_by_its_value_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("A_SIZE", raising=False)
    monkeypatch.setenv("A_FOLDER", "/data/1")
    size, folder = record_undeclared(["$A_SIZE", "$A_FOLDER"])
    assert "/data/1" not in str(folder) and not has_changed(size) and not has_changed(folder)
    monkeypatch.setenv("A_SIZE", "")
    monkeypatch.setenv("A_FOLDER", "/data/2")
    assert has_changed(size) and has_changed(folder)
    assert not has_changed({**folder, "host": "another"})
    monkeypatch.delenv("A_FOLDER")
    assert has_changed(folder)


def test_a_package_that_nobody_named_is_its_version() -> None:
    """Its name is that of the module: PyYAML has `yaml`. A missing package has no version."""
    python, other = record_undeclared(["package:Python", "package:yaml", "package:no_such_thing"])
    assert other["stamp"] == yaml.__version__ == version_of("yaml") and not has_changed(other)
    assert not has_changed(python) and has_changed({**python, "stamp": "3.4"})
    assert was_seen_on_this_machine(other) and not was_seen_on_this_machine({**other, "host": "another"})
    assert has_changed({**other, "stamp": "0.1", "host": "another"}), "slots of all machines should have the same"
    with pytest.raises(InputMissing):
        has_changed({**other, "path": "package:no_such_thing"})


def install(folder: Path, name: str, **lists: str) -> None:
    """The metadata of an installed distribution."""
    about = folder / f"{name}-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.{name}+cpu\n")
    for file, text in lists.items():
        (about / {"top": "top_level.txt", "record": "RECORD"}[file]).write_text(text)


FOUND = {"declared": "first", "listed": "second", "single": "second", "compiled": "third", "commas": "third"}


@pytest.mark.parametrize("module", [*FOUND, "data", "list"])
def test_the_distribution_of_a_module_is_found_without_parsing_those_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    """`packages_distributions` took half a second in each slot, before the first step of a trial."""
    install(tmp_path, "first", top="declared\n", record="listed/__init__.py,,\n")
    install(tmp_path, "second", record="listed/__init__.py,,\nsingle.py,,\ndata/picture.png,,\n")
    install(tmp_path, "third", record='compiled.cpython-311-x86_64-linux-gnu.so,,\n"commas/a, b.py",,\n')
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.setattr(metadata, "packages_distributions", None)
    if (owner := FOUND.get(module)) is None:
        with pytest.raises(InputMissing, match=f"no package {module}"):
            version_of(module)
    else:
        assert version_of(module) == f"1.{owner}"


@pytest.mark.parametrize("module", ["PIL", "pytest", "sklearn", "torch", "yaml"])
def test_it_is_the_one_that_python_finds(module: str) -> None:
    assert list(undeclared_inputs.owners(module)) == metadata.packages_distributions().get(module, [])
