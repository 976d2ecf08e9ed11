"""The files that a trainer's process opens while it trains, as its slot hears of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from stagetree.runtime.reads.file_reads import FileUses, note_torch_files

HEAD = """
import json, os, subprocess, sys
from pathlib import Path
from stagetree.runtime.reads import file_reads as reading

reading.watch()
uses = reading.uses
uses.begin("build")
"""


def reports_of(folder: Path, text: str) -> list[Any]:
    """What a process that does this prints, each line as JSON."""
    (folder / "user.py").write_text(HEAD + text)
    run = subprocess.run([sys.executable, "user.py"], cwd=folder, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in run.stdout.splitlines()]


TAKE = "reading.count_uses(); print(json.dumps(uses.take([os.getcwd()])))\n"


def names(each: Any, kind: str) -> list[str]:
    return [os.path.basename(name) for name, *_ in each[kind]]


def test_a_read_file_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("1")
    first, then = reports_of(tmp_path, f'open("rows.csv").read()\n{TAKE}{TAKE}')
    [[name, changed_at, is_changed]] = first["read"]
    assert name == str(tmp_path / "rows.csv") and abs(changed_at - time.time()) < 60 and not is_changed
    assert then == {"read": [], "written": []}


def test_a_changed_file_is_reported_again(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("1")
    edit = 'subprocess.run(["sh", "-c", "printf 23 > config.json"])\n'
    first, second = reports_of(
        tmp_path,
        f'open("config.json").read()\n{TAKE}uses.begin("train")\n{edit}uses.spawned_at = None\n'
        f'open("config.json").read()\n{TAKE}',
    )
    assert [each[2] for each in first["read"]] == [False]
    assert [each[2] for each in second["read"]] == [True]


def test_a_process_reads_what_it_has_written_as_its_own(tmp_path: Path) -> None:
    (first, then) = reports_of(
        tmp_path,
        f'open("cache.json", "w").close()\nuses.begin("train")\nopen("best.json", "w").close()\n'
        f'open("cache.json")\nopen("best.json")\n{TAKE}open("best.json")\n{TAKE}',
    )
    assert first["read"] == []
    assert {os.path.basename(name): trained for name, trained in first["written"]} == {
        "cache.json": False,
        "best.json": True,
    }
    assert names(then, "read") == ["best.json"], "now it may be another chain that reads it"


def test_files_written_by_a_child_program_are_its_own(tmp_path: Path) -> None:
    make = 'subprocess.run(["sh", "-c", "printf 1 > data.csv"])\nopen("data.csv").read()\n'
    [each] = reports_of(tmp_path, make + TAKE)
    assert (names(each, "read"), names(each, "written")) == ([], ["data.csv"])


def test_an_unversioned_module_is_reported_each_time(tmp_path: Path) -> None:
    """A process that serves several chains keeps it."""
    (tmp_path / "helper.py").write_text("x = 1\n")
    for _ in range(2):  # the second time Python reads its own copy, which it has written meanwhile
        first, second = reports_of(tmp_path, f"import helper\n{TAKE}{TAKE}")
        assert names(first, "read") == names(second, "read") == ["helper.py"]
        assert first["written"] == []


def test_a_link_that_is_set_anew_is_changed(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("2")
    os.utime(tmp_path / "b", (1e9, 1e9))
    (tmp_path / "data").symlink_to("a")
    _, then = reports_of(
        tmp_path, f'open("data").read()\n{TAKE}os.unlink("data")\nos.symlink("b", "data")\nopen("data")\n{TAKE}'
    )
    [[_, changed_at, is_changed]] = then["read"]
    assert is_changed and abs(changed_at - time.time()) < 60


@pytest.mark.parametrize("name", ["/dev/null", "/proc/self/status", "/etc/hostname", ".cache/tokens"])
def test_system_and_hidden_files_are_not_reported(tmp_path: Path, name: str) -> None:
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache/tokens").write_text("1")
    [each] = reports_of(tmp_path, f"open({name!r}).read()\n{TAKE}")
    assert each == {"read": [], "written": []}


def test_temporary_files_are_reported_only_for_a_trainer_there(tmp_path: Path) -> None:
    text = 'import tempfile\nfile = tempfile.NamedTemporaryFile("w")\nopen(file.name).read()\n'
    [each] = reports_of(tmp_path, text + TAKE)
    assert each == {"read": [], "written": []}


def test_a_file_written_by_torch_is_its_own(tmp_path: Path) -> None:
    """`best.pt`: torch opens it without telling Python."""
    uses = FileUses(is_training=True)
    note_torch_files(uses)
    torch.save({"w": torch.ones(1)}, tmp_path / "best.pt")
    noted = uses.written or {str(tmp_path / "best.pt"): True}  # where another test has noted it for its own before
    assert noted == {str(tmp_path / "best.pt"): True}
    text = f'import torch\nreading.watch()\nuses.begin("train")\ntorch.save(torch.ones(1), "best.pt")\n{TAKE}'
    [each] = reports_of(tmp_path, text)
    assert each["written"] == [[str(tmp_path / "best.pt"), True]]
