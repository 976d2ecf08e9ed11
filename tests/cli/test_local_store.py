"""Results stay: a run here keeps its store, and every command reads it without a server."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic import command as alembic
from commandline import Said, Stagetree, Write
from stacks import TOYS, wait_for
from stores import still_store
from toys import grid

from app.cli.service import Documents
from app.events.database import Database, migration_config

STORE = "sqlite:///.stagetree/stagetree.db"


def _below(folder: Path) -> Iterator[Path]:
    """The folder and everything in it: other users of the machine may not read it."""
    yield folder
    yield from folder.rglob("*")


@pytest.mark.slow
def test_results_of_a_run_are_readable_afterwards(stagetree: Stagetree, here: Path, write: Write) -> None:
    ran = stagetree("run", write(grid("kept")), "--slots", 1, "--trainers", TOYS[0], "-o", "json")
    assert ran.code == 0
    assert "Kept in .stagetree (" in ran.err and "stagetree trials last" in ran.err
    assert ran.err.endswith("In a browser: stagetree open\n")
    found = ran.json
    assert all(stat.S_IMODE(each.stat().st_mode) & 0o077 == 0 for each in [*_below(here / ".stagetree")])
    assert stagetree("trials", "last", "-o", "json").json == found["trials"]
    assert stagetree("studies", "--dir", ".stagetree", "-o", "json").json[0]["study"] == found["study"]
    assert stagetree("trial", "kept", 3).code == 0
    assert stagetree("watch", "last", "-o", "json").json == found
    assert stagetree("wait", "last").code == 0
    assert stagetree("replay", "last").out.splitlines()[-1].startswith("identical: ")
    assert "StudyCompleted" in stagetree("events", "last", "--follow").out
    (here / ".stagetree" / "logs" / found["study"]).mkdir(exist_ok=True)
    (here / ".stagetree" / "logs" / found["study"] / "3.log").write_text("loss \x1b[2J0.2\n")
    assert stagetree("logs", "last", 3).out == "loss \\x1b[2J0.2\n"
    again = stagetree("run", write(grid("kept")), "--slots", 1, "--trainers", TOYS[0], "--quiet", "--no-check")
    assert "= 0 run\nsaved   100% by sharing: " in again.out and again.err == ""


def test_an_interrupted_study_is_not_listed_as_running(stagetree: Stagetree, here: Path) -> None:
    """After Ctrl-C it was running for ever."""
    study = still_store(here / ".stagetree")
    said = stagetree("studies")
    assert f"{study}  interrupted" in said.out and "running" not in said.out
    assert stagetree("studies", "-o", "json").json[0]["state"] == "running"
    with (here / ".stagetree" / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = stagetree("studies")
    assert f"{study}  running" in said.out


def test_on_a_terminal_the_list_says_what_resumes_a_study(here: Path) -> None:
    still_store(here / ".stagetree")
    ours, theirs = os.openpty()
    with open(ours, "rb", buffering=0) as terminal:
        subprocess.run([sys.executable, "-m", "stagetree", "studies"], cwd=here, stdout=theirs, check=True)
        os.close(theirs)
        assert b"`stagetree run` with the same study file resumes it" in terminal.read(65536)


@pytest.mark.slow
def test_ctrl_c_while_a_stack_starts_has_its_sentence(here: Path, write: Write) -> None:
    """It said nothing at all."""
    trainers = [word for toy in TOYS for word in ("--trainers", toy)]
    line = [sys.executable, "-m", "stagetree", "run", str(write(grid("early"))), *trainers, "--slots", "1"]
    with subprocess.Popen(line, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        assert started.stderr is not None
        wait_for("the start of the stack", lambda: (here / ".stagetree" / "stagetree.db").exists())
        started.send_signal(signal.SIGINT)
        *_, said = started.stderr.read().strip().splitlines()
    assert started.returncode in (130, -signal.SIGINT)  # of a shell it is 130: CPython ends so after some interrupts
    assert said == "Stopped before anything began: no study was submitted."


@pytest.mark.slow
def test_ctrl_c_in_a_check_has_no_traceback(here: Path) -> None:
    """On a terminal it is for all processes of the command, and each of them printed where it was."""
    text = "import pathlib, time, stagetree\nrun = stagetree.attach('slow')\n"
    text += "run.state(save=dict, load=print, evaluate=dict)\npathlib.Path('begun').touch()\n"
    (here / "trainer.py").write_text(text + "for step, hp in run.steps():\n    time.sleep(60)\n")
    study = "name: x\ntrainer: slow\nmetric: a\nmode: max\nspace: {lr: [0.1]}\ntuner: {kind: grid, max_steps: 3}\n"
    (here / "study.yaml").write_text(study)
    line = [sys.executable, "-m", "stagetree", "check", "study.yaml"]
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "start_new_session": True}
    with subprocess.Popen(line, cwd=here, text=True, **how) as started:
        assert started.stdout is not None
        wait_for("the first step", lambda: (here / "begun").exists())
        os.killpg(started.pid, signal.SIGINT)
        said = started.stdout.read()
    assert started.returncode == 130
    assert "Traceback" not in said


def test_wait_fails_for_a_study_without_a_stack(stagetree: Stagetree, here: Path) -> None:
    study = still_store(here / ".stagetree")
    for command in ("watch", "wait"):
        said = stagetree(command, study)
        assert said.code == 1
        assert "no process serves .stagetree" in said.err
    with (here / ".stagetree" / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert stagetree("wait", study, "--timeout", 0).code == 124


@pytest.mark.slow
def test_checkpoints_and_studies_can_be_deleted(
    stagetree: Stagetree, here: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints down to a budget, but the promised ones; then the study, with everything that it alone used."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")

    def checkpoint_count() -> int:
        return len(list((here / ".stagetree" / "checkpoints").rglob("*.safetensors")))

    study = write(grid("kept"))
    ran = stagetree("run", study, "--slots", 1, "--trainers", TOYS[0], "--no-check", "-o", "json")
    before, best = checkpoint_count(), ran.json["best"]["trial"]
    assert stagetree("gc").out.startswith("0 checkpoints, 0 bytes can be deleted; all checkpoints together take ")
    said = stagetree("gc", "--budget", "1B", "--dry-run", "-o", "json").json
    assert (said["checkpoints"], said["deleted"], checkpoint_count()) == (before - 1, False, before)
    assert stagetree("gc", "--budget", "1B").code == 2  # no user is here to confirm
    assert stagetree("gc", "--budget", "much").code == 2
    assert stagetree("gc", "--budget", "1B", "--yes").code == 0
    assert checkpoint_count() == 1
    said = stagetree("weights", "last", "--to", "best")
    assert f"(trial {best} after step 12: its evaluate measured " in said.out
    mark = r"is unchecked: it resumed from the states? of steps? [\d, and]+, which (was|were) not compared"
    assert re.fullmatch(rf"Trial {best} {mark}\.\n", said.err)  # nothing is verified here
    assert stagetree("weights", "last", "--state", "--to", "best").code == 0
    said = stagetree("weights", "last", "--to", "one/model.safetensors")
    assert said.out.startswith("one/model.safetensors  (trial ") and (here / "one/model.safetensors").is_file(), said
    assert sorted(path.name.rpartition("-")[2] for path in (here / "best").iterdir()) == [
        "12.safetensors",
        "state.safetensors",
    ]
    said = stagetree("weights", "last", "--export", "out", "--trainers", TOYS[0])
    assert said.out.startswith("out  (trial ") and said.out.endswith(": model.safetensors\n"), said
    assert (here / "out/model.safetensors").read_bytes() == next((here / "best").glob("*12.safetensors")).read_bytes()
    assert stagetree("weights", "last", "--export", "out").err == "stagetree: out is not empty: name a new folder\n"
    runs = f"mlflow:file://{here}/runs?artifacts=weights"
    assert stagetree("watch", "last", "--sink", runs).code == 0
    [sent] = (here / "runs").rglob("artifacts/weights/*.safetensors")
    assert sent.read_bytes() == (here / "best" / sent.name).read_bytes()
    [checkpoint] = (here / ".stagetree" / "checkpoints").rglob("*.safetensors")
    gone = checkpoint.rename(here / "gone")
    said = stagetree("watch", "last", "--sink", runs.replace("/runs", "/others"))
    assert (said.code, f"the run of trial {best} of {ran.json['study']} gets no weights: checkpoint " in said.err) == (
        0,
        True,
    )
    gone.rename(checkpoint)
    study.touch()
    said = stagetree("weights", "last", "--to", study)
    assert (said.code, said.err) == (1, f"stagetree: {study} cannot be written: File exists\n")
    assert stagetree("delete", "last").code == 2
    assert stagetree("delete", "last", "--yes").out.startswith(f"{ran.json['study']} is deleted")
    assert stagetree("studies", "-o", "json").json == []
    assert stagetree("gc", "--yes", "-o", "json").json["checkpoints"] == 1
    assert checkpoint_count() == 0
    again = stagetree("run", study, "--slots", 1, "--trainers", TOYS[0], "--no-check", "-o", "json")
    assert again.json["best"] == ran.json["best"]  # the measurements stay on record


def test_a_running_study_is_not_deleted(stagetree: Stagetree, here: Path) -> None:
    study = still_store(here / ".stagetree")
    said = stagetree("delete", study, "--yes")
    assert (said.code, said.err) == (4, f"stagetree: study {study} is running: cancel it before it is deleted\n")


@pytest.mark.slow
def test_notes_are_written_without_a_server(stagetree: Stagetree, here: Path) -> None:
    study = still_store(here / ".stagetree")
    assert stagetree("note", study, "the warm-up is too short").out == f"noted with {study}: event 2\n"
    assert "NoteAdded          text=the warm-up is too short" in stagetree("events", study).out
    assert stagetree("note", study, " ").err == "stagetree: text: must say something, got an empty note\n"
    assert stagetree("note", study, "a", "--trial", 9).code == 3
    assert (
        stagetree("note", study, "it is right", "--correct", 2).out == f"the note of event 2 of {study} is corrected\n"
    )
    assert stagetree("note", study, "a", "--correct", 1).code == 3
    labels = {"study": study, "tags": ["paper", "old"], "attributes": {"seed": 3}}
    assert stagetree("tag", study, "paper", "old", "--set", "seed=3", "-o", "json").json == labels
    assert stagetree("tag", study, "--remove", "old").out == "tags    paper\n        seed = 3\n"
    assert stagetree("tag", study).out == "tags    paper\n        seed = 3\n"


def test_a_log_is_replayed_by_the_names_that_other_commands_take(stagetree: Stagetree, here: Path) -> None:
    """`replay last --log` said that the log held no study `last`."""
    study = still_store(here / ".stagetree")
    (here / "log.jsonl").write_text(stagetree("export", study).out)
    for name in ("last", study[:-3], study):
        assert stagetree("replay", name, "--log", "log.jsonl", "-o", "json").json["identical"], name
    said = stagetree("replay", "other", "--log", "log.jsonl")
    assert (said.code, said.err) == (3, f"stagetree: log.jsonl holds no study other: it has {study}\n")


def test_a_report_needs_the_page(stagetree: Stagetree, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the page was not built, that was a traceback."""
    still_store(here / ".stagetree")
    monkeypatch.setattr("app.service.files.BUILT", here / "dist")
    said = stagetree("report", "last")
    assert said.code == 3
    assert said.err.startswith("stagetree: The report is made of the page, and that is missing here.")


def test_a_report_for_an_address_has_its_picture_beside_it(
    stagetree: Stagetree, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    still_store(here / ".stagetree")
    (here / "assets").mkdir()
    (here / "index.html").write_text('<head><title></title></head>"./assets/a.js" "./assets/a.css"<body></body>')
    for name in ("a.js", "a.css"):
        (here / "assets" / name).write_text("")
    monkeypatch.setattr("app.service.files.BUILT", here)
    said = stagetree("report", "last", "--public", "--url", "https://example.org/b.html", "--to", "out/a.html")
    assert (said.code, said.out.split()) == (0, ["out/a.html", "out/b.png"])
    assert (here / "out" / "b.png").read_bytes().startswith(b"\x89PNG")
    assert 'content="https://example.org/b.png"' in (here / "out" / "a.html").read_text()
    said = stagetree("report", "last", "--url", "b.html")
    assert said.code == 2 and "--url must be the whole address of the report" in said.err


BRITTLE = """
from pathlib import Path

from stagetree import Trainer


class Brittle(Trainer):
    name = "brittle"

    def __init__(self, *, seed, device):
        self.sum = 0.0

    def setup(self, hp):
        self.lr = hp["lr"]

    def train(self):
        if self.lr == 2 and Path("{folder}/broken").exists():
            raise ValueError("the disk of the data is full")
        self.sum += self.lr

    def evaluate(self):
        return {{"sum": self.sum}}

    def state_dict(self):
        return {{"sum": self.sum}}

    def load_state_dict(self, state):
        self.sum = state["sum"]
"""


@pytest.fixture
def run_brittle(stagetree: Stagetree, here: Path, write: Write) -> Callable[..., Said]:
    """Run a study of two learning rates, or another; the trainer is in brittle.py."""
    (here / "brittle.py").write_text(BRITTLE.format(folder=here))
    spec = {"name": "brittle", "trainer": "brittle", "metric": "sum", "mode": "max", "space": {"lr": [1, 2]}}
    spec["tuner"] = {"kind": "grid", "max_steps": 2}

    def run(**fields: Any) -> Said:
        options = "--slots", 1, "--trainers", here / "brittle.py", "--no-check", "-o", "json"
        return stagetree("run", write(spec | fields), *options)

    return run


def change_trainer(here: Path) -> None:
    text = (here / "brittle.py").read_text()
    (here / "brittle.py").write_text(text.replace("self.sum += self.lr", "self.sum -= self.lr"))


@pytest.mark.slow
def test_a_failed_trial_is_tried_again(stagetree: Stagetree, here: Path, run_brittle: Callable[..., Said]) -> None:
    """Its study is over, and no stack runs here until `run` with the same file resumes it."""
    (here / "broken").touch()
    sha = {"kind": "sha", "num_trials": 3, "min_steps": 1, "max_steps": 3, "reduction_factor": 3}
    fields: Any = {"space": {"lr": [1, 2, 3]}, "tuner": sha}
    before = run_brittle(**fields).json
    assert (before["state"], before["failed"]) == ("completed", 1)
    (failed,) = [trial["trial"] for trial in before["trials"] if trial["state"] == "failed"]
    said = stagetree("retry", "last", failed)
    assert (said.code, said.out) == (0, f"trial {failed} of {before['study']} is retried\n")
    again = stagetree("retry", "last", failed)
    assert again.code == 4 and "only a failed trial can be tried again" in again.err
    assert "TrialRetried" in stagetree("events", "last").out
    (here / "broken").unlink()
    ran = run_brittle(**fields)
    after = ran.json
    assert f"Resuming {before['study']}, which was interrupted" in ran.err
    assert (after["study"], after["state"], after["failed"]) == (before["study"], "completed", 0)
    assert sorted(trial["value"] for trial in after["trials"]) == [1, 2, 9], "the tuner replaced the failed trial"
    assert stagetree("replay", "last").out.splitlines()[-1].startswith("identical: ")


@pytest.mark.slow
def test_a_changed_trainer_begins_a_new_study(
    stagetree: Stagetree, here: Path, run_brittle: Callable[..., Said]
) -> None:
    """The same command resumed the old one, which waited for ever for a version that no slot had."""
    (here / "broken").touch()
    before = run_brittle().json
    stagetree("retry", "last", 1)  # it is open, without a stack
    (here / "broken").unlink()
    change_trainer(here)
    ran = run_brittle()
    assert ran.json["study"] != before["study"] and sorted(trial["value"] for trial in ran.json["trials"]) == [-4, -2]
    assert f"{before['study']} was interrupted and is paused: its trainer has changed since" in ran.err
    (here / "brittle.py").write_text(BRITTLE.format(folder=here))
    again = run_brittle()
    assert f"Resuming {before['study']}, which was interrupted" in again.err
    assert sorted(trial["value"] for trial in again.json["trials"]) == [2, 4]


@pytest.mark.slow
def test_a_study_that_ends_while_it_is_resumed_shows_its_result(
    here: Path, run_brittle: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new scheduler can be faster than the request. The user got a refusal, exit code 4, and no result."""
    before = run_brittle().json
    listed = [{"study": before["study"], "state": "running"}]  # as it was a moment ago
    monkeypatch.setattr(Documents, "studies", lambda client, **_: listed, raising=False)
    again = run_brittle()
    assert (again.code, again.json["study"], again.json["trials"]) == (0, before["study"], before["trials"])
    change_trainer(here)
    changed = run_brittle()
    assert changed.code == 0 and changed.json["study"] != before["study"]
    assert "is paused" not in changed.err


@pytest.mark.parametrize("command", ["trials last", "events last", "weights last", "gc"])
def test_a_log_of_a_newer_version(stagetree: Stagetree, here: Path, command: str) -> None:
    """A newer one had written to it: each command ended with a traceback."""
    still_store(here / ".stagetree")
    with closing(sqlite3.connect(here / ".stagetree" / "stagetree.db")) as database, database:
        database.execute("UPDATE events SET type = 'StudyMoved' WHERE type = 'StudySubmitted'")
    said = stagetree(*command.split())
    assert said.code == 1
    assert "cannot be used: The log holds an event of type 'StudyMoved', which this version does not know" in said.err


@pytest.mark.slow
def test_a_preview_that_takes_too_long(stagetree: Stagetree, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """That was a traceback."""
    monkeypatch.setattr("app.simulation.virtual_run.MOST_EVENTS", 3)
    said = stagetree("preview", write(grid("huge")))
    assert said.code == 2
    assert "the study must be smaller to be previewed: it takes too long, try fewer trials" in said.err


def test_a_store_without_its_tables(stagetree: Stagetree, here: Path) -> None:
    study = still_store(here / ".stagetree")
    with Database(STORE).write() as session:
        alembic.downgrade(migration_config(session.connection), "base")
    said = stagetree("trials", study)
    assert (said.code, said.out) == (1, "")
    assert ".stagetree: the database's schema is at nothing, and must be at " in said.err
    assert "`stagetree up --dir .stagetree` brings it up to date" in said.err


def test_a_store_of_an_unreleased_stagetree(stagetree: Stagetree, here: Path, write: Write) -> None:
    study = still_store(here / ".stagetree")
    with Database(STORE).write() as session:
        session.connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0017'")
    for command in (["trials", study], ["run", write(grid("older")), "--slots", 1, "--trainers", TOYS[0], "--quiet"]):
        said = stagetree(*command)
        assert (said.code, said.out) == (1, "")
        assert ".stagetree/stagetree.db was made by an unreleased version of stagetree (its schema is 0017)" in said.err
        assert "use a new --dir or database, or delete this one." in said.err


def test_the_list_has_a_column_for_begin_from_when_used(stagetree: Stagetree, here: Path) -> None:
    study = still_store(here / ".stagetree")
    assert "begins from" not in stagetree("studies").out
    begins = '{"study": "before-1a2b3c", "trial": 3, "step": 20, "state": false, "sha256": "ab", "key": "k"}'
    with closing(sqlite3.connect(here / ".stagetree" / "stagetree.db")) as database, database:
        database.execute("UPDATE studies SET begins = ?", (begins,))
    header, line = stagetree("studies").out.splitlines()
    assert header.endswith("begins from") and line.startswith(study) and line.endswith("before-1a2b3c trial 3 @ 20")
    assert stagetree("studies", "-o", "json").json[0]["begins"] == "before-1a2b3c trial 3 @ 20"


@pytest.mark.slow
def test_enqueued_trials_are_listed_and_withdrawn_in_a_local_store(
    stagetree: Stagetree, here: Path, write: Write
) -> None:
    """Of a study whose budget ended it: one that its tuner took up, and one that waits."""
    asha = {"kind": "asha", "num_trials": 2, "min_steps": 2, "max_steps": 2, "sampler": "random"}
    rates = grid("told")["space"]["lr"][:2]
    study = grid("told") | {"tuner": asha, "suggestions": [{"lr": lr} for lr in rates], "max_total_steps": 2}
    assert stagetree("run", write(study), "--slots", 1, "--trainers", TOYS[0], "--quiet", "--no-check").code == 0
    late = stagetree("suggest", "last", "--withdraw", 0)
    assert late.code != 0 and "suggestion 0 is trial 0 already: cancel that trial instead" in late.err
    assert stagetree("suggest", "last", "--withdraw", 1).out.endswith(" is withdrawn\n")
    listed = stagetree("suggest", "last").out.splitlines()
    assert [line.rsplit(" is ")[-1] for line in listed] == ["trial 0", "withdrawn"]
    said = stagetree("sampler", "last").out
    assert said.startswith("sampler  random\nknows    random uses no results\n"), said
    both = stagetree("suggest", "last", "lr=0.1", "--withdraw", 1)
    assert both.code != 0 and "--withdraw" in both.err
