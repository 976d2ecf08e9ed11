"""Mistyped commands: each message has the error, its place and the correction, in plain words."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
from commandline import Stagetree

from app.cli.commands import GROUPS, app
from app.cli.events import print_array

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
NUMBERS = [
    (name, parameter.opts[0])
    for name, command in COMMANDS.items()
    for parameter in command.params
    if parameter.param_type_name == "option" and hasattr(parameter.type, "min")
]
NEEDING = [name for name, command in COMMANDS.items() if any(each.required for each in command.params)]
STUDY = "name: x\ntrainer: digits\nmetric: a\nmode: max\nspace: {lr: [0.1]}\ntuner: {kind: grid, max_steps: 3}\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, and an environment that names nothing."""
    monkeypatch.chdir(tmp_path)
    for name in ("STAGETREE_URL", "STAGETREE_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("stagetree.client.http.FIRST_PAUSE", 0.001)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(("command", "option"), NUMBERS, ids=" ".join)
def test_what_is_no_number(stagetree: Stagetree, command: str, option: str) -> None:
    said = stagetree(command, option, "x")
    assert (said.code, said.out) == (2, "")
    assert f"Invalid value for '{option}'" in said.err or f"Invalid value for '-{option[2]}'" in said.err
    assert "must be a " in said.err and "got 'x'" in said.err
    assert "not a valid" not in said.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("run s --slots 0", "'--slots': must be a whole number from 1 to 256, got '0'"),
        ("up --port 999999", "'--port': must be a whole number from 0 to 65535, got '999999'"),
        ("wait last --timeout x", "'--timeout': must be a number of at least 0, got 'x'"),
        ("wait last --timeout nan", "'--timeout': must be a finite number, got nan"),
        ("trial last x", "'[N]': must be a whole number of at least 0, got 'x'"),
        ("run s -o xml", "'xml' is not one of 'table', 'json'"),
        ("trials last --sort zzz", "--sort: must be one of trial, state"),
        ("studies --state runing", "got runing; did you mean running?"),
        ("preview s --set x", "--set: must be FIELD=VALUE, such as tuner.max_steps=20, got 'x'"),
        ("replay last --what-if x", "--what-if: must be FIELD=VALUE"),
        ("gc --budget much", "--budget: must be a size such as 20GiB, got 'much'"),
        ("studies --server ftp://x", "--server: must begin with http:// or https://, got ftp://x"),
        (
            "weights last -o x --export y",
            "--export names the folder that the trainer writes into, and --output is for a",
        ),
        ("runn", "Did you mean 'run'?"),
        ("run s --slotz 2", "--slots"),
    ],
)
def test_a_value_that_cannot_be(stagetree: Stagetree, here: Path, typed: str, sentence: str) -> None:
    (here / "s").write_text(STUDY)
    (here / ".stagetree").mkdir()
    (here / ".stagetree" / "stagetree.db").touch()
    said = stagetree(*typed.split())
    assert (said.code, said.out) == (2, "")
    assert sentence in said.err


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_an_option_that_is_none(stagetree: Stagetree, command: str) -> None:
    said = stagetree(command, "--nonsense")
    assert (said.code, said.out) == (2, "")
    assert "No such option: --nonsense" in said.err
    assert f"stagetree {command} -h" in said.err.replace("trials list", "trials")


@pytest.mark.slow
@pytest.mark.parametrize("command", NEEDING)
def test_an_argument_that_is_missing(stagetree: Stagetree, command: str) -> None:
    """It says which, and what to write there."""
    first = next(each for each in COMMANDS[command].params if each.required)
    said = stagetree(command)
    assert (said.code, said.out) == (2, "")
    assert "Missing argument" in said.err and first.help in said.err


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_sentence_and_an_example(stagetree: Stagetree, command: str) -> None:
    said = stagetree(command, "--help")
    assert said.code == 0
    assert f"stagetree {command}" in said.out.split("\n", 1)[1]  # in the example, besides the first line


def test_every_command_is_in_a_group(stagetree: Stagetree) -> None:
    said = stagetree("--help")
    assert all(f"\n{group}:\n" in said.out for group in GROUPS)
    grouped = {each.__name__.replace("_", "-") for group in GROUPS.values() for each in group}
    assert set(COMMANDS) == grouped | {"token", "trials"}  # which have commands of their own


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("run empty", "empty: is empty: a study has at least name, trainer, metric and mode"),
        ("submit folder", "folder: cannot be read: Is a directory"),
        ("preview nan", "nan:5: numbers must be finite, got .nan"),
        ("check none", "none: cannot be read: No such file or directory"),
        ("preview secret", "secret: cannot be read: Permission denied"),
        ("check-tuner folder", "folder: Is a directory"),
        ("check-tuner empty", "empty is not a Python file"),
        ("replay last --log empty", "empty is empty: `stagetree export ID` prints a log"),
        ("replay last --log folder", "folder: Is a directory"),
        ("replay last --log study", "study: line 1 is not an event of a log"),
    ],
)
def test_a_file_of_another_kind(
    stagetree: Stagetree, here: Path, typed: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "folder").mkdir()
    (here / "empty").touch()
    (here / "study").write_text(STUDY)
    (here / "nan").write_text(STUDY.replace("0.1", ".nan"))
    monkeypatch.setattr(Path, "read_text", _refusing(Path.read_text))
    said = stagetree(*typed.split())
    assert (said.code, said.out) == (2, "")
    assert sentence in said.err and "Traceback" not in said.err


def _refusing(read: Callable[..., str]) -> Callable[..., str]:
    """Like `read`, for a user without access to `secret`: tests may run as root, who may read everything."""

    def read_text(path: Path, *arguments: Any, **named: Any) -> str:
        if path.name == "secret":
            raise PermissionError(13, "Permission denied")
        return read(path, *arguments, **named)

    return read_text


OF_STUDIES = ["watch", "wait", "trials", "events", "replay", "export", "weights"]
OF_TRIALS = ["trial", "logs"]


@pytest.mark.slow
@pytest.mark.parametrize("command", [*OF_STUDIES, *OF_TRIALS])
def test_a_study_that_is_not_there(
    stagetree: Stagetree, here: Path, make_store: Callable[[Path], str], command: str
) -> None:
    study = make_store(here / ".stagetree")
    said = stagetree(command, study.replace("still", "stil"), *(["0"] if command in OF_TRIALS else []))
    assert (said.code, said.out) == (3, "")
    assert f"there is no study stil-123456; did you mean {study}?; `stagetree studies` lists" in said.err


def test_a_trial_that_is_not_there(stagetree: Stagetree, here: Path, make_store: Callable[[Path], str]) -> None:
    study = make_store(here / ".stagetree")
    for command in OF_TRIALS:
        said = stagetree(command, study, 7)
        assert (said.code, said.out) == (3, "")
        assert "7" in said.err and study in said.err


@pytest.mark.parametrize("command", ["weights x", "gc", "strike x"])
def test_where_no_database_is_none_is_made(stagetree: Stagetree, here: Path, command: str) -> None:
    """An empty stagetree.db was made here, and then had no table."""
    said = stagetree(*command.split())
    assert (said.code, said.out) == (3, "")
    assert "there is no .stagetree here: --dir FOLDER or STAGETREE_DATABASE_URL says where" in said.err
    assert list(here.iterdir()) == []


def test_a_folder_that_holds_no_store(stagetree: Stagetree) -> None:
    for command in ("gc", "weights x", "trials x", "strike x"):
        said = stagetree(*command.split(), "--dir", "nowhere")
        assert (said.code, said.out) == (3, "")
        assert "there is no nowhere here: go to the folder of your studies, or name it" in said.err


def test_a_study_is_struck_in_the_store_that_is_here(
    stagetree: Stagetree, here: Path, make_store: Callable[[Path], str]
) -> None:
    """The command reported that there is no study."""
    study = make_store(here / ".stagetree")
    assert f"{study} is struck" in stagetree("strike", study).out


def test_what_cannot_be_opened(stagetree: Stagetree, here: Path, make_store: Callable[[Path], str]) -> None:
    assert "nowhere is no folder: name a store" in stagetree("open", "nowhere").err
    assert stagetree("open", here).code == 3
    make_store(here / "store")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = stagetree("open", "store", "--port", taken.getsockname()[1])
    assert said.code == 2 and "cannot be used" in said.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("best last", "there is no command best: `stagetree trials ID --sort value` is meant for that"),
        ("status", "there is no command status: `stagetree studies` is meant for that"),
        ("trials last --sort -valu", "got -valu; did you mean value?"),
    ],
)
def test_what_other_programs_call_it_is_answered(stagetree: Stagetree, line: str, said: str) -> None:
    answer = stagetree(*line.split())
    assert (answer.code, answer.out) == (2, "") and answer.err.endswith(said + "\n")


def test_neither_a_server_nor_a_store(stagetree: Stagetree, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message named a missing server at 127.0.0.1:8000, and nothing else, to users who never started one."""
    monkeypatch.setattr("stagetree.client.http.DEFAULT_URL", "http://127.0.0.1:9")
    said = stagetree("trials", "last")
    assert said.code == 69
    assert "There is no .stagetree here either: `stagetree run STUDY.yaml` makes one" in said.err


def test_a_change_of_a_kept_study_says_how_it_is_served(
    stagetree: Stagetree, here: Path, make_store: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `stagetree run`, a branch failed with a missing server at a port that the user had never named."""
    monkeypatch.setattr("stagetree.client.http.DEFAULT_URL", "http://127.0.0.1:9")
    make_store(here / ".stagetree")
    said = stagetree("branch", "last", 0, "--at", 1, "--set", "lr=1", "--steps", 2)
    assert said.code == 69
    assert said.err.endswith("are changed by way of a server: start one here with `stagetree up --trainers FILE.py`\n")
    assert "by way of a server" not in stagetree("pause", "last", "--server", "http://127.0.0.1:9").err


@pytest.fixture
def page() -> Iterator[str]:
    """A server of something else."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>hello \x1b[2J")

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("command", ["studies", "trials last", "slots", "pause x", "trainers"])
def test_a_server_of_something_else(stagetree: Stagetree, page: str, command: str) -> None:
    said = stagetree(*command.split(), "--server", page)
    assert said.code != 0 and said.out == ""
    assert "this is not a stagetree server" in said.err
    assert "\x1b" not in said.err and "Traceback" not in said.err


@pytest.mark.parametrize("command", ["run", "check"])
def test_a_trainer_in_a_file_beside_the_study_is_found_and_named(
    stagetree: Stagetree, here: Path, command: str
) -> None:
    """With a file of another name than trainer.py, the message listed the names of examples."""
    (here / "broken.py").write_text("def")
    for name in ("mine.py", "other.py"):
        (here / name).write_text("import stagetree\nrun = stagetree.attach('mine')\n")
    (here / "study.yaml").write_text(STUDY.replace("trainer: digits", "trainer: mine"))
    said = stagetree(command, "study.yaml")
    assert (said.code, said.err) == (2, "stagetree: trainer: 'mine' is in mine.py, other.py: give --trainers mine.py\n")
    (here / "studies").mkdir()
    (here / "study.yaml").rename(here / "studies" / "study.yaml")
    assert stagetree(command, "studies/study.yaml").err == said.err, "where one is, too"


def test_no_trainers_at_all(stagetree: Stagetree, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It said: must be one of , got 'digits'."""
    monkeypatch.setattr("app.cli.trainer_files.EXAMPLES", here)
    (here / "study.yaml").write_text(STUDY)
    said = stagetree("run", "study.yaml")
    assert (said.code, said.out) == (2, "")
    assert "trainer: there are none here, so not 'digits': register yours with --trainers FILE.py" in said.err


def test_what_is_secret_in_a_url_is_not_said(stagetree: Stagetree, monkeypatch: pytest.MonkeyPatch) -> None:
    said = stagetree("studies", "--server", "http://me:hidden1@127.0.0.1:9/?token=hidden2&a=1")
    assert said.code == 69
    assert "127.0.0.1:9" in said.err and "hidden" not in said.err


def test_events_come_as_they_happen(capsys: pytest.CaptureFixture[str]) -> None:
    """With --follow and as JSON, nothing was printed until the study was over."""

    def found() -> Iterator[Any]:
        yield {"position": 1}
        assert '"position": 1' in capsys.readouterr().out
        yield {"position": 2}

    print_array(found())
    assert capsys.readouterr().out == ',\n {"position": 2}\n]\n'


def test_it_can_be_called_as_a_module(here: Path) -> None:
    """Also beside a user's own app.py."""
    (here / "app.py").write_text("raise SystemExit('not this one')")
    for options in ([], ["-P"]):
        command = [sys.executable, *options, "-m", "stagetree", "--version"]
        said = subprocess.run(command, capture_output=True, text=True, check=True)
        assert said.stdout == f"stagetree {version('stagetree')}\n"


@pytest.mark.parametrize(("typed", "offered"), [("tri", "trials"), ("trials --so", "--sort")])
def test_a_shell_completes(typed: str, offered: str) -> None:
    asked = {"COMP_WORDS": f"stagetree {typed}", "COMP_CWORD": str(len(typed.split()))}
    command = [str(Path(sys.executable).parent / "stagetree")]
    environment = {**os.environ, "_STAGETREE_COMPLETE": "complete_bash", **asked}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert offered in said.stdout.split()
