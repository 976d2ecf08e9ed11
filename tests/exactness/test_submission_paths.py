"""The same over every way of submitting, with the service in real processes: `run`, REST, and `stagetree.local()`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from alone import Alone
from bank import RIGHT, SAVED, STUDIES, WRONG, differences, file_of, steps_of, trainers
from stacks import TOYS, Json, Service
from toys import trials as packed

import stagetree
from app.embedded.stack import Embedded
from stagetree.client import Client

pytestmark = pytest.mark.slow(together=True)

KINDS = dict(trainers((*WRONG, *RIGHT)))
MORE = "STAGETREE_TEST_MORE" in os.environ
WRONG_ONES = tuple(dict(trainers(WRONG))) if MORE else ("counter", "late-decay", "global")
RIGHT_ONES = tuple(dict(trainers(RIGHT))) if MORE else ("pickled",)
FILES = sorted({file_of(KINDS[name]) for name in WRONG_ONES + RIGHT_ONES})


def spec_of(name: str, **more: Any) -> Json:
    """The study in which it shows that a trainer is wrong."""
    return STUDIES[KINDS[name].shows_in](name, **more)


def outcome_of(study: Json, trials: list[Json], name: str, seed: int, alone: Alone) -> str:
    """How the study came out; fails where a number is wrong in silence. trials: with their curves."""
    spec = spec_of(name)
    is_marked, may_differ = False, name in SAVED or not KINDS[name].is_repeatable
    for trial in trials:
        shown = {point["step"]: point["metrics"] for point in trial["curve"]}
        steps = steps_of(spec["eval_every"], trial["asked"])
        right = alone.curve(file_of(KINDS[name]), name, {}, seed, trial["hp"], steps)
        wrong = list(differences(shown, right))
        assert trial["state"] == "completed", trial
        assert not wrong or trial.get("exactness"), wrong
        assert may_differ or not (wrong and study["exactness"]["isolated"]), wrong
        is_marked = is_marked or bool(trial.get("exactness"))
    return "caught" if study["exactness"]["isolated"] else "marked" if is_marked else "plain"


def check(found: dict[str, tuple[str, str]]) -> None:
    """found: how each study came out, and the verdict on its trainer."""
    assert {name: found[name] for name in RIGHT_ONES if found[name][0] == "caught" or found[name][1] == "inexact"} == {}
    assert {name: found[name] for name in WRONG_ONES if found[name][0] == "plain"} == {}


@pytest.fixture(scope="module")
def running_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """What `stagetree up` starts, with the files of the bank."""
    embedded = Embedded(tmp_path_factory.mktemp("up"), 2, [*FILES, TOYS[0]])
    embedded.start(await_slots=True)
    with Client(embedded.url) as client:
        yield Service(client)
    embedded.stop()


def submit_and_judge(client: Client, study: str, name: str, seed: int, alone: Alone) -> tuple[str, str]:
    """How it came out, and the verdict."""
    answer = client.study(study)
    trials = [client.trial(study, trial["trial"]) for trial in client.trials(study)]
    return outcome_of(answer, trials, name, seed, alone), answer["exactness"]["verdict"]


def test_verdicts_over_rest(running_stack: Service, alone: Alone) -> None:
    studies = {name: running_stack.submit(spec_of(name)) for name in WRONG_ONES + RIGHT_ONES}
    for study in studies.values():
        running_stack.wait(study)
    check({name: submit_and_judge(running_stack.client, study, name, 3, alone) for name, study in studies.items()})


def test_packs_are_unchecked_over_rest_and_by_commands(running_stack: Service, tmp_path: Path) -> None:
    """Also beside trials that share no step: they were never compared with those trials alone."""
    how = {"trainer": "packable", "metric": "val_loss", "mode": "min", "packing": 2}
    spec = packed("in-packs", *(({"lr": rate, "bs": 4}, 4) for rate in (0.1, 0.2, 0.3)), **how)
    study, mark = running_stack.submit(spec), "unchecked: training in packs is not compared"
    found = running_stack.wait(study)
    assert found["state"] == "completed" and found["packing"]["width"] == 2
    assert {name: found["exactness"][name] for name in ("verdict", "text", "mark", "reason")} == {
        "verdict": "unchecked",
        "text": mark,
        "mark": mark,
        "reason": "training in packs is not compared",
    }
    shown = [
        *found["trials"],
        *running_stack.client.trials(study),
        *(running_stack.client.trial(study, number) for number in range(3)),
    ]
    assert [trial["exactness"] for trial in shown] == [mark] * 9

    def run_command(*arguments: str) -> str:
        command = [sys.executable, "-m", "stagetree", *arguments, study, "--server", running_stack.url]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert [trial["exactness"] for trial in json.loads(run_command("trials", "-o", "json"))] == [mark] * 3
    assert run_command("trials", "-o", "csv").count(mark) == 3
    assert f"exact   {mark}" in run_command("watch")
    number = [sys.executable, "-m", "stagetree", "trial", study, "1", "--server", running_stack.url]
    assert mark in subprocess.run(number, capture_output=True, text=True, check=True).stdout


def test_verdicts_over_run(running_stack: Service, alone: Alone, tmp_path: Path) -> None:
    """The command shows the verdict, and the marks beside the values, that REST shows."""
    found = {}
    for name in WRONG_ONES + RIGHT_ONES:
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(spec_of(name, seed=4)))
        command = [sys.executable, "-m", "stagetree", "run", f"{name}.yaml", "-o", "json"]
        command += ["--server", running_stack.url]
        said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        study = json.loads(said.stdout)
        found[name] = submit_and_judge(running_stack.client, study["study"], name, 4, alone)
        shown = {trial["trial"]: trial.get("exactness", "") for trial in study["trials"]}
        marks = {trial["trial"]: trial.get("exactness", "") for trial in running_stack.client.trials(study["study"])}
        assert shown == marks and any(marks.values()) == (found[name][0] == "marked"), study
        assert study["exactness"]["verdict"] == found[name][1]
    check(found)


def test_verdicts_over_local(alone: Alone, tmp_path: Path) -> None:
    with stagetree.local(slots=2, dir=tmp_path / "kept", trainers=FILES) as server, Client(server.url) as client:
        service = Service(client)
        studies = {name: service.submit(spec_of(name, seed=5)) for name in WRONG_ONES + RIGHT_ONES}
        for study in studies.values():
            service.wait(study)
        check({name: submit_and_judge(client, study, name, 5, alone) for name, study in studies.items()})
