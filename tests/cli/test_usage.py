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

import jsonschema
import pytest
import typer
import yaml
from commandline import Stagetree
from stores import still_store

from app.cli.commands import GROUPS, NOUNS, app, command_name
from app.cli.events import parse_since, print_array
from app.cli.groups import FIRST_WEEK

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
NUMBERS = [
    (name, parameter.opts[0])
    for name, command in COMMANDS.items()
    for parameter in command.params
    if parameter.param_type_name == "option" and hasattr(parameter.type, "min")
]
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
def test_invalid_numbers(stagetree: Stagetree, command: str, option: str) -> None:
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
        ("up --slots 257", "'--slots': must be a whole number from 1 to 256, got '257'"),
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
        ("weights last --to x --export y", "--export names the folder that the trainer writes into, and --to is for a"),
        ("erase", "give either --person NAME or --notes STUDY, to say what to erase"),
        ("runn", "Did you mean 'run'?"),
        ("run s --slotz 2", "--slots"),
    ],
)
def test_invalid_values(stagetree: Stagetree, here: Path, typed: str, sentence: str) -> None:
    (here / "s").write_text(STUDY)
    (here / ".stagetree").mkdir()
    (here / ".stagetree" / "stagetree.db").touch()
    said = stagetree(*typed.split())
    assert (said.code, said.out) == (2, "")
    assert sentence in said.err


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_an_example_and_names_unknown_options_and_missing_arguments(
    stagetree: Stagetree, command: str
) -> None:
    said = stagetree(command, "--help")
    assert said.code == 0
    assert f"stagetree {command}" in said.out.split("\n", 1)[1]  # in the example, besides the first line
    said = stagetree(command, "--nonsense")
    assert (said.code, said.out) == (2, "")
    assert "No such option: --nonsense" in said.err
    assert f"stagetree {command} -h" in said.err.replace("trials list", "trials").replace("trial show", "trial")
    if required := [each for each in COMMANDS[command].params if each.required]:
        said = stagetree(command)
        assert (said.code, said.out) == (2, "")
        assert "Missing argument" in said.err and required[0].help in said.err


def test_every_command_is_in_a_group(stagetree: Stagetree) -> None:
    said = stagetree("help", "all")
    assert all(f"{group}:\n" in said.out for group in GROUPS)
    grouped = {command_name(each) for group in GROUPS.values() for each in group}
    assert set(COMMANDS) == grouped | {*NOUNS, "help"}
    assert all(f"\n  {name} " in said.out for name in COMMANDS)


def test_the_first_help_has_the_commands_of_a_first_week(stagetree: Stagetree) -> None:
    """It listed 49, of which a dozen are enough to begin with."""
    said = stagetree("--help")
    listed = [name for name in COMMANDS if f"\n  {name} " in said.out]
    assert set(listed) == {*FIRST_WEEK} & {*COMMANDS} and 10 <= len(listed) <= 12
    assert "stagetree help all" in said.out


def test_a_command_on_a_noun_shows_its_own_options(stagetree: Stagetree) -> None:
    """`trials --help` named none of --sort, --state and --limit."""
    assert all(option in stagetree("trials", "--help").out for option in ("--sort", "--state", "--limit"))
    said = stagetree("trial", "--help")
    assert all(part in said.out for part in ("{ID} [N]", "--server", "\nCommands:\n", "  stop "))
    assert "A token" not in said.out and "later." in stagetree("token", "-h").out, "sentences are whole"


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        *(("help trial add", "--steps"), ("help run", "Example:  stagetree run"), ("help", "--version")),
        *(("-h", "Commands of a first week:"), ("trials -h", "Example:  stagetree trials last")),
    ],
)
def test_help_explains_a_command(stagetree: Stagetree, typed: str, shown: str) -> None:
    said = stagetree(*typed.split())
    assert said.code == 0 and shown in said.out


def test_states_of_trials_are_refused_for_studies(stagetree: Stagetree) -> None:
    """`trials --help` offered to list only studies in a state."""
    assert "studies" not in stagetree("trials", "--help").out.partition("--state")[2].partition("--limit")[0]


@pytest.mark.parametrize("noun", ["study", "trial", "token"])
def test_nouns_have_a_plural_that_lists_them(noun: str) -> None:
    assert {noun, {"study": "studies"}.get(noun, f"{noun}s")} <= set(COMMANDS)


def test_o_takes_a_format_and_to_a_path() -> None:
    """`-o` was a path in weights, film and report, and `--to` a sink."""
    for command in [inner for each in COMMANDS.values() for inner in getattr(each, "commands", {"": each}).values()]:
        for parameter in command.params:
            assert ("-o" in parameter.opts) == ("--output" in parameter.opts)
            assert "-o" not in parameter.opts or "json" in parameter.type.choices, command.name
            assert "--to" not in parameter.opts or parameter.metavar in ("FILE", "PATH"), command.name


REFUSALS = [
    ("run none.yaml", 2, "none.yaml: cannot be read: No such file or directory"),
    ("run wrong.yaml", 2, "wrong.yaml: space.lr: must be a list"),
    ("trials last", 69, "no stagetree server answers"),
    ("trials last --dir none", 3, "there is no none here"),
    ("trials", 2, "Missing argument 'ID'."),
    ("trials last --limit x", 2, "must be a whole number of at least 1, got 'x'"),
    ("nothing", 2, "No such command 'nothing'."),
    ("studies --state none", 2, "--state: must be one of"),
]


@pytest.mark.parametrize(("typed", "code", "detail"), REFUSALS)
def test_a_refusal_is_a_problem_document_with_json_output(
    stagetree: Stagetree, here: Path, typed: str, code: int, detail: str
) -> None:
    """Stdout was empty, and programs read prose on stderr."""
    (here / "wrong.yaml").write_text(STUDY.replace("[0.1]", "[]"))
    for json in (("-o", "json"), ("--output=json",)):
        said = stagetree(*typed.split(), *json)
        assert said.code == code == said.json["exit_code"]
        assert said.json.keys() >= {"type", "title", "status", "detail"} and detail in said.json["detail"]
        assert said.json["detail"].split("\n")[0] in said.err
    assert stagetree(*typed.split()).out == "", "and without it, stdout has nothing"


def test_a_wrong_field_of_a_study_is_named_to_programs(stagetree: Stagetree, here: Path) -> None:
    (here / "wrong.yaml").write_text(STUDY.replace("[0.1]", "[]"))
    [error] = stagetree("preview", "wrong.yaml", "-o", "json").json["errors"]
    assert error["field"] == "space.lr" and error["problem"]


def test_the_schema_describes_study_files(stagetree: Stagetree) -> None:
    schema = stagetree("schema").json
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    for path in (Path(__file__).parents[2] / "examples").rglob("*.yaml"):
        written = yaml.safe_load(path.read_text())
        if "trainer" in written and "tuner" in written:
            assert [error.message for error in validator.iter_errors(written)] == [], path
    assert list(validator.iter_errors(yaml.safe_load(STUDY) | {"mood": "max"}))


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("run empty", "empty: is empty: a study has at least name, trainer, metric and mode"),
        ("run words", "words: must be an object with the fields of a study, got 'words'"),
        ("run open", "open:3: the file ends before a bracket that was opened is closed"),
        ("run binary", "not UTF-8"),
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
    (here / "words").write_text("words")
    (here / "open").write_text("name: x\nspace: [1,\n")
    (here / "binary").write_bytes(b"\x7fELF\xff\xfe")
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
def test_a_study_that_is_not_there(stagetree: Stagetree, here: Path, command: str) -> None:
    study = still_store(here / ".stagetree")
    said = stagetree(command, study.replace("still", "stil"), *(["0"] if command in OF_TRIALS else []))
    assert (said.code, said.out) == (3, "")
    assert f"there is no study stil-123456; did you mean {study}?; `stagetree studies` lists" in said.err


def test_a_trial_that_is_not_there(stagetree: Stagetree, here: Path) -> None:
    study = still_store(here / ".stagetree")
    for command in OF_TRIALS:
        said = stagetree(command, study, 7)
        assert (said.code, said.out) == (3, "")
        assert "7" in said.err and study in said.err


@pytest.mark.parametrize("command", ["weights x", "gc", "strike x", "token create ci"])
def test_no_database_is_created_for_a_missing_one(stagetree: Stagetree, here: Path, command: str) -> None:
    """An empty stagetree.db was made here, and then had no table."""
    said = stagetree(*command.split())
    assert (said.code, said.out) == (3, "")
    assert "there is no .stagetree here: --dir FOLDER or STAGETREE_DATABASE_URL says where" in said.err
    assert list(here.iterdir()) == []


def test_a_folder_without_a_store(stagetree: Stagetree) -> None:
    for command in ("gc", "weights x", "trials x", "strike x"):
        said = stagetree(*command.split(), "--dir", "nowhere")
        assert (said.code, said.out) == (3, "")
        assert "there is no nowhere here: go to the folder of your studies, or name it" in said.err


def test_a_study_is_struck_in_the_local_store(stagetree: Stagetree, here: Path) -> None:
    """The command reported that there is no study."""
    study = still_store(here / ".stagetree")
    assert f"{study} is struck" in stagetree("strike", study).out


def test_unreadable_stores(stagetree: Stagetree, here: Path) -> None:
    assert "nowhere: no such folder; name a store" in stagetree("open", "nowhere").err
    assert stagetree("open", here).code == 3
    still_store(here / "store")
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
def test_names_of_other_programs_are_answered(stagetree: Stagetree, line: str, said: str) -> None:
    answer = stagetree(*line.split())
    assert (answer.code, answer.out) == (2, "") and answer.err.endswith(said + "\n")


def test_neither_a_server_nor_a_store(stagetree: Stagetree, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message named a missing server at 127.0.0.1:8000, and nothing else, to users who never started one. It came
    after two seconds of further attempts.
    """
    monkeypatch.setattr("stagetree.client.http.DEFAULT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("stagetree.client.http.pause_after", lambda failures: pytest.fail("it waits for a server"))
    said = stagetree("trials", "last")
    assert said.code == 69
    assert "There is no .stagetree here either: `stagetree run STUDY.yaml` makes one" in said.err


def test_a_change_of_a_local_study_says_how_to_serve_it(
    stagetree: Stagetree, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `stagetree run`, a branch failed with a missing server at a port that the user had never named."""
    monkeypatch.setattr("stagetree.client.http.DEFAULT_URL", "http://127.0.0.1:9")
    still_store(here / ".stagetree")
    said = stagetree("branch", "last", 0, "--at", 1, "--set", "lr=1", "--steps", 2)
    assert said.code == 69
    assert "`stagetree up --trainers FILE.py` starts a server here" in said.err
    assert "stagetree up" not in stagetree("pause", "last", "--server", "http://127.0.0.1:9").err


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
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
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
    monkeypatch.setattr("app.cli.trainer_files.examples_folder", lambda: here)
    (here / "study.yaml").write_text(STUDY)
    said = stagetree("run", "study.yaml")
    assert (said.code, said.out) == (2, "")
    assert "trainer: there are none here, so not 'digits': register yours with --trainers FILE.py" in said.err


def test_secrets_in_urls_are_masked(stagetree: Stagetree, monkeypatch: pytest.MonkeyPatch) -> None:
    said = stagetree("studies", "--server", "http://me:hidden1@127.0.0.1:9/?token=hidden2&a=1")
    assert said.code == 69
    assert "127.0.0.1:9" in said.err and "hidden" not in said.err


def test_events_are_printed_as_they_happen(capsys: pytest.CaptureFixture[str]) -> None:
    """With --follow and as JSON, nothing was printed until the study was over."""

    def arriving_events() -> Iterator[Any]:
        yield {"position": 1}
        assert '"position": 1' in capsys.readouterr().out
        yield {"position": 2}

    print_array(arriving_events())
    assert capsys.readouterr().out == ',\n {"position": 2}\n]\n'


def test_a_time_is_an_age_or_a_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.cli.events.time.time", lambda: 10_000.0)
    assert [parse_since(text) for text in ("30s", "1.5m", "2h")] == [9970.0, 9910.0, 2800.0]
    assert parse_since("1970-01-01T00:01:00+00:00") == 60.0
    with pytest.raises(typer.BadParameter, match=r"must be a time such as .* got 'soon'"):
        parse_since("soon")


def test_the_command_runs_as_a_module(here: Path) -> None:
    """Also beside a user's own app.py."""
    (here / "app.py").write_text("raise SystemExit('not this one')")
    for options in ([], ["-P"]):
        command = [sys.executable, *options, "-m", "stagetree", "--version"]
        said = subprocess.run(command, capture_output=True, text=True, check=True)
        assert said.stdout == f"stagetree {version('stagetree')}\n"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("tri", "trials"),
        ("aud", "audit"),
        ("trials --so", "--sort"),
        ("trial --se", "--server"),
        ("trial last --se", "--server"),
        ("trial ad", "add"),
        ("trial add last --st", "--steps"),
        ("trials last -o js", "json"),
    ],
)
def test_bash_completes(typed: str, offered: str) -> None:
    assert offered in _completions("complete_bash", typed).split()


def _completions(kind: str, typed: str) -> str:
    words = f"stagetree {typed}"
    bash = {"COMP_WORDS": words, "COMP_CWORD": str(len(typed.split()))}
    environment = {**os.environ, "_STAGETREE_COMPLETE": kind, **bash, "_TYPER_COMPLETE_ARGS": words}
    command = [str(Path(sys.executable).parent / "stagetree")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("kind", ["complete_zsh", "complete_fish"])
def test_zsh_and_fish_complete_too(kind: str) -> None:
    fish = {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    with pytest.MonkeyPatch.context() as patched:
        for name, value in fish.items():
            patched.setenv(name, value)
        assert "trials" in _completions(kind, "tri")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_installs_a_script_of_the_shell(shell: str) -> None:
    said = _completions(f"source_{shell}", "")
    assert "_STAGETREE_COMPLETE" in said and "stagetree" in said
