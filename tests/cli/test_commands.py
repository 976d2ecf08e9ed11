"""Each command against a running server: what it prints for people, and for programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from commandline import Stagetree
from stacks import Service
from toys import grid, switch, trials

Json = dict[str, Any]
Write = Callable[[Any], Path]
RESULT = {"study", "state", "metric", "mode", "best", "trials", "steps", "merge_rate", "gpu_seconds", "wall_seconds"}


@pytest.fixture(scope="module")
def done(stack: Service) -> Json:
    """A study that is over."""
    return stack.run(grid("shown"))


def test_run_prints_the_result(stagetree: Stagetree, served: Service, write: Write, done: Json) -> None:
    said = stagetree("run", write(grid("shown")))
    assert said.code == 0
    assert said.out.splitlines()[0].split() == ["trial", "score", "steps", "hyper-parameters"]
    assert "96 asked for, 56 different, 0 run" in said.out
    assert "completed" in said.err


def test_run_prints_one_document(stagetree: Stagetree, served: Service, write: Write, done: Json) -> None:
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


def test_run_says_why_trials_failed(stagetree: Stagetree, served: Service, write: Write) -> None:
    moods = ({"mood": "raise"}, 2), ({}, 2)
    said = stagetree("run", write(trials("cli-failed-one", *moods)))
    assert said.code == 0
    assert "failed     trial 0: exception after step 0: ValueError: the loss went through the roof" in said.out
    said = stagetree("run", write(trials("cli-failed-all", moods[0])))
    assert said.code == 1
    assert "all 1 trials failed; trial 0: " in said.out
    said = stagetree("run", write(trials("cli-failed-all", moods[0])), "-o", "json")
    assert (said.code, said.json["state"]) == (1, "failed")


def test_submit_and_watch(stagetree: Stagetree, served: Service, write: Write) -> None:
    said = stagetree("submit", write(trials("cli-watch", ({}, 3))))
    study = said.out.strip()
    assert (said.code, said.err) == (0, f"Follow it with: stagetree watch {study}\n")
    assert stagetree("watch", study).code == 0
    assert stagetree("watch", study, "-o", "json").json["state"] == "completed"
    assert stagetree("submit", write(trials("cli-watch", ({}, 3))), "-o", "json").json["state"] == "running"


def test_studies(stagetree: Stagetree, served: Service, done: Json) -> None:
    assert done["study"] in stagetree("studies").out
    listed = stagetree("studies", "-o", "json").json
    assert next(each["state"] for each in listed if each["study"] == done["study"]) == "completed"


def test_trials(stagetree: Stagetree, served: Service, done: Json) -> None:
    said = stagetree("trials", done["study"])
    assert len(said.out.splitlines()) == 9
    assert "multistep(init=0.1, milestones=[4, 9], gamma=0.5)" in said.out
    assert stagetree("trials", done["study"], "-o", "json").json == done["trials"]


def test_events(stagetree: Stagetree, served: Service, done: Json) -> None:
    said = stagetree("events", done["study"])
    assert "PlanOpened" in said.out.splitlines()[0]
    assert "StudyCompleted" in said.out  # the last checkpoint may come after it
    followed = stagetree("events", done["study"], "--follow", "-o", "json").json
    events = stagetree("events", done["study"], "-o", "json").json
    assert events[: len(followed)] == followed
    later = stagetree("events", done["study"], "--after", events[4]["position"], "-o", "json").json
    assert later == events[5:]


def test_pause_resume_and_cancel(stagetree: Stagetree, served: Service) -> None:
    study = served.submit(trials("cli-pause", ({}, 300), seconds=0.1))
    assert stagetree("pause", study).out == f"{study} is paused\n"
    assert stagetree("pause", study).code == 0
    assert stagetree("resume", study, "-o", "json").json["state"] == "running"
    assert stagetree("cancel", study).out == f"{study} is cancelled\n"
    assert stagetree("cancel", study).code == 0
    assert stagetree("watch", study).code == 1


def test_preview_needs_no_server_and_no_trainer(stagetree: Stagetree, write: Write) -> None:
    spec = grid("preview", trainer="nobody-has-this")
    found = stagetree("preview", write(spec), "-o", "json", "--slots", 2).json
    assert (found["requested"], found["unique"], found["critical_path_steps"]) == (96, 56, 12)
    assert found["merge_rate"] == pytest.approx(96 / 56, abs=0.001)
    assert 28 <= found["makespan_steps"] <= 56
    said = stagetree("preview", write(spec))
    assert "96 asked for, 56 different" in said.out and "on 1 slot" in said.out


def test_doctor(stagetree: Stagetree, served: Service) -> None:
    said = stagetree("doctor")
    assert said.code == 0
    assert {line[:3] for line in said.out.splitlines()} == {"ok "}
    findings = stagetree("doctor", "-o", "json").json
    assert [found["what"] for found in findings][-1] == "server"
    said = stagetree("doctor", "--server", "http://127.0.0.1:9")
    assert said.code == 1
    assert "BAD  server" in said.out


@pytest.mark.parametrize("command", ["watch", "run"])
def test_ctrl_c_stops_watching_and_says_that_the_study_goes_on(
    stagetree: Stagetree, served: Service, write: Write, command: str
) -> None:
    spec = trials(f"cli-ctrl-c-{command}", ({"lr": switch(0.1, 0.2, 5)}, 300), seconds=0.1)
    what = served.submit(spec) if command == "watch" else write(spec)
    timer = Timer(1.5, interrupt)
    timer.start()
    said = stagetree(command, what)
    timer.join()
    study = next(served.client.studies())
    assert said.code == 130
    assert f"study {study['study']} goes on" in said.err
    assert f"stagetree watch {study['study']} --server {served.url}" in said.err
    assert study["state"] == "running"
    served.client.cancel(study["study"])


def interrupt() -> None:
    import _thread

    _thread.interrupt_main()
