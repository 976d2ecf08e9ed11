"""Where a command writes may be closed, full, or unable to hold some characters: no traceback, and the right code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from stacks import ROOT
from stores import still_store

from app.cli.errors import explain_errors

NAME = "stud\u00e9 \u2603"
PLAIN = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    still_store(tmp_path / "store", name=NAME)
    return tmp_path / "store"


def list_in_shell(
    store: Path, *options: str, redirection: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """`stagetree studies` in a shell."""
    command = f"{sys.executable} -P -m stagetree studies --dir {store} {' '.join(options)} {redirection}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, shell=True, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_characters_that_a_terminal_cannot_show_are_replaced(store: Path) -> None:
    """It ended with a traceback."""
    said = list_in_shell(store, **PLAIN)
    assert (said.returncode, said.stderr) == (0, "")
    assert r"stud\xe9 \u2603" in said.stdout
    said = list_in_shell(store, "-o", "json", **PLAIN)
    assert said.stdout.isascii() and json.loads(said.stdout)[0]["name"] == NAME


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("-o", "csv"), ("-o", "json")])
def test_a_full_disk_is_a_sentence(store: Path, options: tuple[str, ...]) -> None:
    """It ended with a traceback, here and once more at the end of the interpreter."""
    said = list_in_shell(store, *options, redirection="> /dev/full")
    assert (said.returncode, said.stderr) == (1, "stagetree: No space left on device\n")


@pytest.mark.slow
def test_closed_streams(store: Path) -> None:
    assert list_in_shell(store, redirection=">&-").stderr == ""
    said = list_in_shell(store, "-o", "json", redirection="2>&-")
    assert said.returncode == 0 and json.loads(said.stdout)[0]["name"] == NAME


@pytest.mark.slow
def test_a_reader_that_closes_the_pipe(store: Path) -> None:
    said = list_in_shell(store, redirection="| true")
    assert said.stderr == ""


def test_a_file_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`weights --output FILE` ended with a traceback."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as ended, explain_errors():
        (tmp_path / "file").mkdir()
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"stagetree: {tmp_path / 'file'}: File exists\n"
