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
from bank import RIGHT, WRONG, differences, file_of, grid, steps_of, trainers

import stagetree
from app.embedded import Embedded
from stagetree.client import Client

KINDS = dict(trainers((*WRONG, *RIGHT)))
WRONG_ONES = ("counter", "late-decay", "measuring-draws", "global", "without-optimizer", "hooks")
RIGHT_ONES = ("pickled", "generators", "more-state")
FILES = sorted({file_of(KINDS[name]) for name in WRONG_ONES + RIGHT_ONES})
Json = dict[str, Any]


def tell(study: Json, trials: list[Json], name: str, alone: Alone) -> str:
    """How the study came out; fails where a number is wrong in silence. trials: with their curves."""
    spec = grid(name)
    is_marked = False
    for trial in trials:
        shown = {point["step"]: point["metrics"] for point in trial["curve"]}
        steps = steps_of(spec["eval_every"], [trial["steps"]])
        right = alone.curve(file_of(KINDS[name]), name, {}, spec["seed"], trial["hp"], steps)
        wrong = list(differences(shown, right))
        assert trial["state"] == "completed", trial
        assert not wrong or trial["exactness"], wrong
        assert not (wrong and study["exactness"]["isolated"]), wrong
        is_marked = is_marked or bool(trial["exactness"])
    return "caught" if study["exactness"]["isolated"] else "marked" if is_marked else "plain"


def check(outcomes: dict[str, str], verdicts: dict[str, str]) -> None:
    assert {name for name in RIGHT_ONES if outcomes[name] == "caught" or verdicts[name] == "inexact"} == set()
    assert {name: outcomes[name] for name in WRONG_ONES if outcomes[name] == "plain"} == {}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """What `stagetree up` starts, with the files of the bank."""
    embedded = Embedded(tmp_path_factory.mktemp("up"), 2, FILES)
    embedded.start(await_slots=True)
    with Client(embedded.url) as client:
        yield client
    embedded.stop()


def told(client: Client, study: str, name: str, alone: Alone) -> tuple[str, str]:
    answer = client.study(study)
    trials = [client.trial(study, number) for number in range(len(answer["trials"]))]
    return tell(answer, trials, name, alone), answer["exactness"]["verdict"]


def test_over_rest(up: Client, alone: Alone) -> None:
    studies = {name: up.submit(grid(name))["study"] for name in WRONG_ONES + RIGHT_ONES}
    for study in studies.values():
        up.wait(study)
    found = {name: told(up, study, name, alone) for name, study in studies.items()}
    check({name: outcome for name, (outcome, _) in found.items()}, {name: verdict for name, (_, verdict) in found.items()})


def test_over_run(up: Client, alone: Alone, tmp_path: Path) -> None:
    """The command prints the marks, with each trial."""
    outcomes, verdicts = {}, {}
    for name in WRONG_ONES + RIGHT_ONES:
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(grid(name, trainer_args={"tag": "run"})))
        command = [sys.executable, "-m", "stagetree", "run", f"{name}.yaml", "-o", "json", "--server", up.url]
        said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        study = json.loads(said.stdout)
        outcomes[name], verdicts[name] = told(up, study["study"], name, alone)[0], study["exactness"]["verdict"]
        shown = {trial["trial"]: trial["exactness"] for trial in study["trials"]}
        assert (outcomes[name] == "plain") == (not any(shown.values()))
    check(outcomes, verdicts)
