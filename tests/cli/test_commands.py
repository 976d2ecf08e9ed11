"""Each command against a running server: its output for people and for programs."""

from __future__ import annotations

import csv
import io
import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from commandline import Stagetree, Write
from stacks import TOYS, Json, Service, wait_for
from stores import still_store
from toys import grid, trials

from app.api.examples import STUDY
from app.cli import service
from app.cli.interrupted_studies import resume_interrupted
from app.cli.output import Format
from app.cli.service import Documents
from app.cli.watch import Show, follow, print_study, watch_until_end
from app.domain import events as e
from app.domain.terms import StudyId
from app.events.database import Database
from app.events.sql_log import SqlRecords
from stagetree import Client
from stagetree.sinks.tensorboard import FILE
from stagetree.text import saved_text

RESULT = {"study", "state", "metric", "mode", "best", "trials", "steps", "merge_rate", "gpu_seconds", "wall_seconds"}


@pytest.fixture(scope="module")
def done(stack: Service) -> Json:
    """A study that is over."""
    return stack.run(grid("shown"))


def test_run_prints_the_result(stagetree: Stagetree, running_server: Service, write: Write, done: Json) -> None:
    said = stagetree("run", write(grid("shown")))
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[:2] == [done["story"]["lines"][0], ""]
    assert lines[2].split() == ["trial", "score", "step", "mark", "hyper-parameters"]
    cost = "96 if each trial were trained alone - 40 shared - 56 known from other studies = 0 run"
    assert f"\nsteps   {cost}\nsaved   100% by sharing: " in said.out
    assert "completed" in said.err
    assert f"Sending the study to {running_server.url}, the server of STAGETREE_URL." in said.err


def test_run_prints_one_document(stagetree: Stagetree, running_server: Service, write: Write, done: Json) -> None:
    said = stagetree("run", write(grid("shown")), "-o", "json")
    assert said.code == 0
    assert said.json.keys() >= RESULT
    assert said.json["state"] == "completed"
    assert said.json["steps"] == {"requested": 96, "unique": 56, "executed": 0}
    assert said.json["merge_rate"] == pytest.approx(96 / 56, abs=0.001)
    best = said.json["best"]
    assert best.keys() >= {"trial", "value", "steps", "hp"}
    assert best["value"] == max(trial["value"] for trial in said.json["trials"])
    assert [trial["trial"] for trial in said.json["trials"]] == list(range(8))
    assert all(trial.keys() >= {"trial", "state", "steps", "value", "hp"} for trial in said.json["trials"])


def test_advice_on_sharing_is_in_the_preview_and_not_in_each_run(
    stagetree: Stagetree, running_server: Service, write: Write
) -> None:
    """A sampled peak shares nothing, which may be what the user wants."""
    spec = grid(
        "drawn", space={"lr": {"uniform": [0.1, 0.2]}}, tuner={"kind": "random", "num_trials": 3, "max_steps": 1}
    )
    said = stagetree("run", write(spec))
    assert said.code == 0 and "Advice" not in said.err
    told = "lr is drawn, so no two trials begin alike and nothing is shared: list 2 values"
    assert f"advice          {told}" in stagetree("preview", write(spec)).out


def test_an_ended_study_shows_the_reason(stagetree: Stagetree, running_server: Service, write: Write) -> None:
    said = stagetree("run", write(grid("ended", target=-1000)))
    assert said.code == 0
    assert "target -1000 reached: " in said.err
    assert "ended   target -1000 reached: " in said.out
    assert "not trained" in said.out, "which is no saving"
    study = next(running_server.client.studies())["study"]
    assert stagetree("replay", study).out.splitlines()[-1].startswith("identical: ")
    assert stagetree("trials", study, "--state", "cancelled").out.count("cancelled") >= 4


def test_failures_are_shown(stagetree: Stagetree, running_server: Service, write: Write) -> None:
    """Counted, with the first traceback; the command fails when no trial worked."""
    moods = ({"mood": "raise"}, 2), ({"mood": "raise"}, 3), ({}, 2)
    said = stagetree("run", write(trials("cli-failed-two", *moods)))
    study = next(running_server.client.studies())["study"]
    assert said.code == 0
    assert "2 failed" in said.err
    group = "2 trials: ValueError: the loss went through the roof, after step 0"
    traceback = f"stagetree trial {study} 0 --server {running_server.url}"
    assert f"failed  2 of 3 trials; a traceback: {traceback}\n        {group} (trials 0, 1)\n" in said.out
    assert "Traceback" not in said.out
    assert stagetree("wait", study).code == 0 and stagetree("wait", study, "--strict").code == 5
    assert "ValueError: the loss went through the roof" in stagetree("trial", study, 1).out
    first, second, empty, grouped = stagetree("trials", study, "--state", "failed").out.splitlines()[1:]
    assert (first.split()[0], second.split()[0], empty) == ("0", "1", "") and grouped.startswith(f"failed  {group}")
    assert first.count("ValueError: the loss went through the roof, after step 0, tried 3 times") == 1
    said = stagetree("run", write(trials("cli-failed-all", moods[0])))
    assert said.code == 1
    assert said.out.startswith("error   the only trial failed; trial 0: ValueError: the loss went through the roof")
    assert "the first is trial 0:\n        Traceback (most recent call last):" in said.out
    study = next(running_server.client.studies())["study"]
    assert f"more of it: stagetree trial {study} 0 --server {running_server.url}\n" in said.out
    said = stagetree("run", write(trials("cli-failed-all", moods[0])), "-o", "json", "--quiet")
    assert (said.code, said.json["state"]) == (1, "failed")
    assert "completed" not in said.err


def test_submit_and_watch(stagetree: Stagetree, running_server: Service, write: Write) -> None:
    said = stagetree("submit", write(trials("cli-watch", ({}, 3))))
    study = said.out.strip()
    assert (said.code, said.err) == (0, f"Follow it with: stagetree watch {study}\n")
    said = stagetree("submit", write(trials("cli-watch", ({}, 3))), "--server", running_server.url)
    assert said.err.endswith(f"--server {running_server.url}\n"), "elsewhere than where it would be looked for"
    assert stagetree("watch", study).code == 0
    assert stagetree("watch", study, "-o", "json").json["state"] == "completed"
    assert stagetree("submit", write(trials("cli-watch", ({}, 3))), "-o", "json").json["state"] == "running"


def test_studies(stagetree: Stagetree, running_server: Service, done: Json) -> None:
    line = next(line for line in stagetree("studies").out.splitlines() if line.startswith(done["study"]))
    best = done["best"]
    assert f"{done['metric']} {best['value']:.6g} (highest, trial {best['trial']})" in line
    assert saved_text(done["cost"]["saved_by_sharing"], done["cost"]["saved_by_stopping"]) in line
    listed = next(each for each in stagetree("studies", "-o", "json").json if each["study"] == done["study"])
    assert (listed["state"], listed["best"], listed["best_trial"]) == ("completed", best["value"], best["trial"])
    assert stagetree("studies", "--tag", "unused-tag", "-o", "json").json == []


def test_trials(stagetree: Stagetree, running_server: Service, done: Json) -> None:
    said = stagetree("trials", done["study"])
    table, marks = said.out.splitlines()[:9], said.out.splitlines()[9:]
    marked = [trial for trial in done["trials"] if trial.get("exactness")]
    assert "  mark  " in table[0] and sum("  unchecked  " in line for line in table) == len(marked) > 0
    assert marks and all(
        re.search(r"unchecked: it resumed from the (state of step|states of steps) \d", line) for line in marks
    )
    assert "multistep(init=0.1, milestones=[4, 9], gamma=0.5)" in said.out
    assert "trained to step 12" in said.out
    assert stagetree("trials", done["study"], "-o", "json").json == done["trials"]


def test_results_that_are_equal_point_to_repeats(stagetree: Stagetree, running_server: Service, write: Write) -> None:
    """The first of them was shown as the winner, without a word about chance."""
    said = stagetree("run", write(trials("cli-equal", ({"mood": "fine"}, 3), ({}, 3), ({}, 2))), "--quiet")
    hint = "Equal results may be chance: `repeats` in the study file"
    assert hint in said.out and hint in stagetree("trials", "last").out


@pytest.mark.slow
def test_trials_of_the_user(stagetree: Stagetree, running_server: Service, write: Write) -> None:
    """Added, trained longer, branched at a shown price, and stopped; `stagetree trials` lists them."""
    said = stagetree("run", write(trials("cli-branch", ({}, 8))), "-o", "json", "--quiet")
    study, hp = said.json["study"], said.json["trials"][0]["hp"]
    name, value = next(iter(hp)), next(iter(hp.values()))
    rest = [word for each, known in hp.items() if each != name for word in ("--set", f"{each}={json.dumps(known)}")]
    parts = ("branch", study, 0, "--at", 5, "--steps", 8, "--set", f"{name}=0.125")
    assert stagetree(*parts, "--preview").out.startswith("3 new steps of 8: 5 are shared")
    said = stagetree(*parts)
    assert "trial 1 branches off trial 0 at step 5" in said.out and said.code == 0
    assert stagetree("wait", study, "--timeout", 60).code == 0
    listed = stagetree("trials", study, "-o", "json").json
    assert listed == stagetree("trials", study, "-o", "json").json and listed[1]["state"] == "completed"
    assert listed[0]["hp"][name] == value and listed[1]["steps"] == 8
    late = stagetree("trial", "add", study, "--steps", 3, "--set", f"{name}=0.5", *rest)
    assert late.code == 4 and "is completed" in late.err
    said = stagetree("soup", study, "--trials", "0,1", "--weights", "2,1")
    assert said.code == 0 and said.out.startswith("0 new steps\ntrial 2 is the average of trials "), said.err
    assert stagetree("soup", study, "--best", 2, "--preview").out.startswith("0 new steps")
    assert stagetree("wait", study, "--timeout", 60).code == 0
    assert stagetree("trials", study, "-o", "json").json[2]["state"] == "completed"
    assert "got 9" in stagetree("soup", study, "--best", 9).err
    assert "must be numbers" in stagetree("soup", study, "--trials", "a").err
    assert stagetree("branch", study, 0, "--at", 99, "--steps", 100, "--set", f"{name}=1").code == 2
    said = stagetree("branch", study, 0, "--at", 1, "--steps", 9, "--set", f"{name}=NaN")
    assert (said.code, said.err) == (2, f"stagetree: --set {name}=NaN: numbers must be finite, got NaN\n")
    assert stagetree("trial", "stop", study, 1).code == 4
    assert stagetree("trial", "extend", study, 0, "--steps", 9).code == 4


def test_trials_in_order_and_as_csv(stagetree: Stagetree, running_server: Service, done: Json) -> None:
    values = sorted((trial["value"] for trial in done["trials"]), reverse=True)
    ask = ("trials", done["study"], "--sort", "value", "--limit", 3, "-o")
    assert [trial["value"] for trial in stagetree(*ask, "json").json] == values[:3]
    rows = list(csv.DictReader(io.StringIO(stagetree(*ask, "csv").out)))
    assert [float(row["value"]) for row in rows] == values[:3]
    assert all(row["best.step"] and (row["hp.lr"] or row["hp.lr.family"]) for row in rows)
    assert stagetree("trials", done["study"], "--sort", "vlaue").code == 2
    assert stagetree("trials", done["study"], "--state", "fialed").err.endswith("did you mean failed?\n")


def test_a_study_is_given_by_a_prefix_its_name_or_last(
    stagetree: Stagetree, running_server: Service, done: Json
) -> None:
    newest = next(running_server.client.studies())["study"]
    assert newest in stagetree("trial", "last", 0).out
    unique = next(
        n
        for n in range(1, 60)
        if sum(s["study"].startswith(done["study"][:n]) for s in running_server.client.studies()) == 1
    )
    assert stagetree("trials", done["study"][:unique], "-o", "json").json == done["trials"]
    named = stagetree("trials", "shown", "-o", "json")
    assert named.code == 0 and len(named.json) == 8
    running_server.submit(trials("seldom", ({}, 3)))
    said = stagetree("trials", "s")
    assert (said.code, said.out) == (2, "") and "could be" in said.err


def test_a_trial(stagetree: Stagetree, running_server: Service, done: Json) -> None:
    said = stagetree("trial", done["study"], 2)
    assert f"trial     2 of {done['study']}: trained to step 12" in said.out
    assert "score" in said.out.splitlines()[-4:][0] or "step" in said.out
    assert stagetree("trial", done["study"], 2, "-o", "json").json == running_server.client.trial(done["study"], 2)
    assert stagetree("trial", done["study"], 99).code == 3


@pytest.mark.slow
def test_a_trial_is_trained_here(stagetree: Stagetree, running_server: Service, done: Json) -> None:
    said = stagetree("debug", done["study"], 2, "--trainers", TOYS[0])
    assert said.code == 0
    assert f"score  {done['trials'][2]['value']:.6g}" in said.out.splitlines()
    assert stagetree("debug", done["study"], 2).err.startswith("stagetree: trainer 'toy' is in no file here")


@pytest.fixture
def determinism() -> Iterator[None]:
    """What a test asks of torch in this process ends with it."""
    is_on = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    yield
    torch.use_deterministic_algorithms(is_on, warn_only=only_warns)


@pytest.mark.usefixtures("determinism")
def test_trial_run_trains_like_a_slot(stagetree: Stagetree, running_server: Service, tmp_path: Path) -> None:
    """It ran without the arguments outside the plan, and was strict for every study."""
    journal = tmp_path / "journal"
    file = {"runtime_args": {"journal": str(journal)}, "determinism": "warn"}
    study = running_server.run(trials("cli-debug-args", ({}, 2), **file))["study"]
    journal.unlink()
    assert stagetree("debug", study, 0, "--trainers", TOYS[0]).code == 0
    assert len(journal.read_text().splitlines()) == 2
    assert torch.is_deterministic_algorithms_warn_only_enabled()


def test_an_error_is_raised_unchanged(stagetree: Stagetree, running_server: Service) -> None:
    study = running_server.run(trials("cli-debug", ({"mood": "raise"}, 2)))["study"]
    with pytest.raises(ValueError, match="the loss went through the roof"):
        stagetree("debug", study, 0, "--trainers", TOYS[0])


def test_wait_exits_like_the_study(stagetree: Stagetree, running_server: Service, done: Json) -> None:
    said = stagetree("wait", done["study"])
    assert (said.code, said.out) == (0, f"{done['study']} is completed\n")
    assert stagetree("wait", done["study"], "-o", "json").json["best"] == done["best"]
    study = running_server.submit(trials("cli-wait", ({}, 300), seconds=0.1))
    assert stagetree("wait", study, "--timeout", 0).code == 124
    said = stagetree("wait", study, "--timeout", 0, "-o", "json")
    assert (said.code, said.json["state"]) == (124, "running")
    running_server.client.cancel(study)
    assert stagetree("wait", study).code == 1


def test_slots_and_trainers(stagetree: Stagetree, running_server: Service) -> None:
    wait_for("both slots", lambda: len(running_server.client.slots()) == 2)
    assert len(stagetree("slots").out.splitlines()) == 3
    assert {"toy", "digits"} <= {each["name"] for each in stagetree("trainers", "-o", "json").json}


def test_fields_of_a_study_are_set(stagetree: Stagetree, write: Write) -> None:
    found = stagetree("preview", write(grid("set")), "--set", "tuner.max_steps=4", "-o", "json").json
    assert found["requested"] == 32
    for wrong, sentence in {
        "tuner": "FIELD=VALUE",
        "name.x=1": "name.x: cannot be set",
        "tuner.max_steps=x": "got 'x'",
        "space.lr=[0.1": "--set space.lr=[0.1: the [ that is opened here is not closed",
    }.items():
        said = stagetree("preview", write(grid("set")), "--set", wrong)
        assert said.code == 2 and sentence in said.err


def test_a_set_value_is_parsed_like_a_study_file(stagetree: Stagetree, write: Write) -> None:
    """`space.lr=[0.1, .01]` and `space.lr=.01` were texts, for which the trainer had no use."""
    file = write(grid("set"))
    ways = ("space.lr=[0.1, .01, 1e-3]", "space.momentum=.5")
    found = stagetree("preview", file, "--set", ways[0], "--set", ways[1], "-o", "json").json
    assert (found["trials"], found["advice"]) == (3, [])
    drawn = "{family: exponential, init: .1, gamma: {choice: [.9, 1]}}"
    assert stagetree("preview", file, "--set", f"space.lr={drawn}", "-o", "json").json["trials"] == 4
    untuned = {name: value for name, value in grid("set").items() if name != "tuner"}
    asked = ("--set", "tuner.kind=grid", "--set", "tuner.max_steps=3", "-o", "json")
    assert stagetree("preview", write(untuned), *asked).json["trials"] == 8, "that was a KeyError"


def test_the_best_trial_needs_no_number(stagetree: Stagetree, running_server: Service, done: Json) -> None:
    study, best = done["study"], done["best"]["trial"]
    assert stagetree("trial", study).out == stagetree("trial", study, best).out
    assert stagetree("logs", study).out == stagetree("logs", study, best).out


def test_trials_are_sorted_by_a_hyper_parameter(stagetree: Stagetree, running_server: Service, done: Json) -> None:
    """REST did, and the command line refused it."""
    listed = stagetree("trials", done["study"], "--sort", "-hp.momentum", "-o", "json").json
    values = [trial["hp"]["momentum"]["value"] for trial in listed if "value" in trial["hp"]["momentum"]]
    assert values == sorted(values, reverse=True)
    said = stagetree("trials", done["study"], "--sort", "hp.momentun")
    assert said.code == 2 and said.err.endswith("got hp.momentun; did you mean hp.momentum?\n")


def test_printed_configurations_are_unchanged(stagetree: Stagetree, running_server: Service, done: Json) -> None:
    said = stagetree("replay", done["study"], "--what-if", "space.lr=0.1")
    assert said.code == 2
    assert said.err == "stagetree: space.lr: cannot be changed: the configurations of a study are fixed\n"


def test_events(stagetree: Stagetree, running_server: Service, done: Json) -> None:
    said = stagetree("events", done["study"])
    assert said.out.splitlines()[0].split()[::2] == ["1", "StudySubmitted"]
    assert "StudyCompleted" in said.out  # the last checkpoint may come after it
    followed = stagetree("events", done["study"], "--follow", "-o", "json").json
    events = stagetree("events", done["study"], "-o", "json").json
    assert events[: len(followed)] == followed
    later = stagetree("events", done["study"], "--after", events[4]["position"], "-o", "json").json
    assert later[: len(events) - 5] == events[5:]
    page = stagetree("events", done["study"], "--after", events[4]["position"], "--limit", 3, "-o", "json").json
    assert page == events[5:8]
    assert stagetree("events", done["study"], "--since", "2d", "-o", "json").json[: len(events)] == events
    assert stagetree("events", done["study"], "--since", "2099-01-01", "-o", "json").json == []


def test_show_prints_the_result_of_the_run(stagetree: Stagetree, running_server: Service, done: Json) -> None:
    said = stagetree("study", done["study"])
    assert said.out.splitlines()[2] == done["story"]["lines"][0] and f"{done['study']} completed" in said.out
    assert stagetree("study", done["study"], "-o", "json").json["best"] == done["best"]
    logs = stagetree("logs", done["study"], 0, "-o", "json").json
    assert (logs["study"], logs["trial"]) == (done["study"], 0) and "--- stage of node" in logs["log"]


def test_pause_resume_and_cancel(stagetree: Stagetree, running_server: Service) -> None:
    study = running_server.submit(trials("cli-pause", ({}, 300), seconds=0.1))
    assert stagetree("pause", study).out == f"{study} is paused\n"
    assert stagetree("pause", study).code == 0
    assert stagetree("resume", study, "-o", "json").json["state"] == "running"
    assert stagetree("cancel", study).out == f"{study} is cancelled\n"
    assert stagetree("cancel", study).code == 0
    assert stagetree("watch", study).code == 1


def test_doctor(stagetree: Stagetree, running_server: Service) -> None:
    said = stagetree("doctor")
    assert said.code == 0
    assert {line[:3] for line in said.out.splitlines()} == {"ok "}
    findings = stagetree("doctor", "-o", "json").json
    assert [found["what"] for found in findings][-3:] == ["server", "clock", "service"]
    said = stagetree("doctor", "--server", "http://127.0.0.1:9")
    assert said.code == 1
    assert "BAD  server" in said.out


def test_a_study_that_is_watched_is_written_to_sinks(
    stagetree: Stagetree, running_server: Service, write: Write, tmp_path: Path
) -> None:
    """As docs/sinks.md says."""
    study = stagetree("submit", write(trials("cli-sinks", ({}, 3)))).out.strip()
    places = [tmp_path / "here", tmp_path / "there"]
    sinks = [part for place in places for part in ("--sink", f"tensorboard:{place}")]
    assert stagetree("watch", study, *sinks).code == 0
    assert all((place / study / "trial-0" / FILE).stat().st_size for place in places)
    assert {b"train/push" in (place / study / "trial-0" / FILE).read_bytes() for place in places} == {True}
    assert running_server.client.logged(study, 0)[-1].step == 3
    said = stagetree("watch", study, "--sink", "nowhere")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("stagetree: --to: must be tensorboard:DIR")


@pytest.mark.parametrize("command", ["watch", "run"])
def test_ctrl_c_stops_watching_and_says_that_the_study_continues(
    stagetree: Stagetree, running_server: Service, write: Write, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while the command waits for its next look at the study."""
    spec = trials(f"cli-ctrl-c-{command}", ({}, 300), seconds=0.1)
    what = running_server.submit(spec) if command == "watch" else write(spec)
    waiting = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: signal.raise_signal(signal.SIGINT))
    monkeypatch.setattr("app.cli.watch.time", waiting)
    said = stagetree(command, what)
    study = next(running_server.client.studies())
    assert said.code == 130
    assert f"study {study['study']} is still running" in said.err
    assert f"stagetree watch {study['study']} --server {running_server.url}" in said.err
    assert study["state"] == "running"
    running_server.client.cancel(study["study"])


def test_ctrl_c_while_slots_stop_for_an_ended_study_shows_its_result() -> None:
    """It said that the same command resumes there, and that began another study."""
    stopping = STUDY["progress"] | {"running": [{"study": STUDY["study"]}]}
    answers = [STUDY | {"state": state, "progress": stopping} for state in ("running", "completed")]
    asked = list[Json]()

    def answer(study: str, trials: bool = True) -> Json:
        asked.append(answers[min(len(asked), 1)])
        return asked[-1]

    def check() -> None:
        if asked[-1]["state"] == "completed":
            signal.raise_signal(signal.SIGINT)

    client: Any = SimpleNamespace(study=answer)
    assert follow(client, STUDY["study"], Show.quiet, check)["state"] == "completed"


def give_up(folder: Path, study: str) -> None:
    database = Database(f"sqlite:///{folder / 'stagetree.db'}")
    SqlRecords(database).log.append("plan-1", [e.StudyCancelled(study=StudyId(study), at=2.0)], expected=None, at=2.0)
    database.dispose()


def test_an_ended_plan_is_archived_read_and_restored(stagetree: Stagetree, tmp_path: Path) -> None:
    study, store = still_store(tmp_path / "store"), ("--dir", tmp_path / "store")
    refused = stagetree("archive", study, *store)
    assert refused.code == 1 and "has a study that is not over" in refused.err
    assert stagetree("archive", "--older-than", 0, *store).out == "0 plans archived: 0 events in 0 bytes\n"
    give_up(tmp_path / "store", study)
    assert stagetree("archive", "--older-than", 0, *store, "-o", "json").json["plans"] == 1
    assert study in stagetree("studies", *store).out
    assert stagetree("trials", study, *store, "-o", "json").json == []
    noted = stagetree("note", study, "too late", *store)
    assert noted.code == 4 and "stagetree archive --back STUDY" in noted.err
    assert "are back" in stagetree("archive", "--back", study, *store).out
    assert stagetree("archive", "--back", study, *store).out == "its plan is not archived\n"
    assert stagetree("note", study, "in time", *store).code == 0


@pytest.mark.parametrize("wrong", [(), ("--back",), ("x", "--older-than", "3")])
def test_archive_needs_an_argument(stagetree: Stagetree, wrong: tuple[str, ...]) -> None:
    said = stagetree("archive", *wrong)
    assert said.code == 2 and "name a study or give --older-than DAYS" in said.err


class StudiesAsBefore(Documents):
    """Lists studies as they were when a run was interrupted: its stack has trained on since, and this one has ended."""

    before = ""

    def studies(self, **_: Any) -> list[Json]:
        listed = super().__getattr__("studies")()
        return [each | {"state": "running"} for each in listed if each["study"] == self.before]


def test_run_on_a_study_that_finished_meanwhile_shows_its_result(
    running_server: Service, done: Json, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said "is completed and cannot be changed", with exit code 4."""
    with Client(running_server.url) as client:
        documents = StudiesAsBefore(client)
        documents.before = done["study"]
        stack = service.Service[Documents](documents, check=lambda: None, folder=tmp_path)
        study = resume_interrupted(stack, done["spec"])
        assert study == done["study"]
        document = watch_until_end(stack, study, Show.quiet)
        assert print_study(stack, document, Format.table, is_strict=False) == 0
    assert capsys.readouterr().out.startswith("Best: trial ")
