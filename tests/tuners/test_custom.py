"""Tuners from files: the page's tuner passes the suite, and errors of others are reported."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
from docs_pages import DOCS, blocks

from app.cli.commands import app as cli
from app.cli.errors import explain_errors
from app.domain.terms import TrialEventKind
from app.search.replay import replay
from app.search.tuners.base import REGISTERED, pin_version
from app.simulation.tuner_suite import CHECKS, check
from app.tuner_files import TunerFileError, load, register
from stagetree.spec import SpecError, StudySpec
from tests.tuners.worlds import STUDY, numbered_events, run_simulator

PAGE = {block.file: block.text for block in blocks(DOCS / "tuners" / "writing.md") if block.file}
BASE = "from app.search.tuners import *\nfrom random import random\n"


@pytest.fixture(autouse=True)
def nothing_registered() -> Iterator[None]:
    before = dict(REGISTERED)
    yield
    REGISTERED.clear()
    REGISTERED.update(before)


@pytest.fixture
def halving(tmp_path: Path) -> str:
    return file(tmp_path, PAGE["halving.py"])


def file(folder: Path, text: str, name: str = "halving.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_the_guides_tuner_passes_the_suite(halving: str) -> None:
    answer = CliRunner().invoke(cli, ["check-tuner", halving])
    assert answer.exit_code == 0, answer.output
    printed = next(block.text for block in blocks(DOCS / "tuners" / "writing.md") if block.language == "text")
    assert answer.output.splitlines()[1:] == printed.splitlines()[1:]
    assert len(printed.splitlines()) == 1 + len(CHECKS)


def test_the_study_of_the_page_is_run_by_it_and_replayed(halving: str) -> None:
    version = register([halving])["one-halving"]
    given = StudySpec.from_dict(yaml.safe_load(PAGE["one-halving.yaml"]) | {"metric": "loss", "mode": "min"})
    stamped = pin_version(given.to_json())
    assert stamped["tuner"]["version"] == version
    world = run_simulator(StudySpec.from_dict(stamped), slots=2)
    study = world.plan.studies[STUDY]
    assert (study.state, [trial.steps for trial in study.trials].count(20)) == ("completed", 3)
    assert replay(numbered_events(world.events), STUDY).identical


@pytest.mark.slow
def test_the_policy_of_hyperdrive_passes_the_suite_and_goes_by_its_labels(tmp_path: Path) -> None:
    """Once every trial has had a turn, the next one is the best that waits, and was labelled the most urgent."""
    path = file(tmp_path, PAGE["leader_first.py"], "leader_first.py")
    assert CliRunner().invoke(cli, ["check-tuner", path]).exit_code == 0
    register([path])
    tuner = {"kind": "custom", "name": "leader-first", "args": {"trials": 5}}
    fields = yaml.safe_load(PAGE["one-halving.yaml"]) | {"metric": "loss", "mode": "min", "tuner": tuner}
    world = run_simulator(StudySpec.from_dict(pin_version(StudySpec.from_dict(fields).to_json())), slots=1)
    study, waiting = world.plan.studies[STUDY], dict[int, float]()
    assert {trial.steps for trial in study.trials} == {10}
    for event in study.history:
        match event.kind:
            case TrialEventKind.RESULT:
                waiting[event.trial] = event.metrics["loss"] or 0.0
            case TrialEventKind.PROMOTE:
                assert event.trial == min(waiting, key=waiting.__getitem__)
        if event.kind == TrialEventKind.PROMOTE or event.steps == 10:
            waiting.pop(event.trial)
    assert replay(numbered_events(world.events), STUDY).identical


@pytest.mark.parametrize("name", [name for name in PAGE if name and name.endswith(".yaml")])
def test_a_study_continues_only_with_its_own_version(halving: str, name: str) -> None:
    fields: dict[str, Any] = yaml.safe_load(PAGE[name])
    with pytest.raises(SpecError, match=r"registered on this server \(none\), got 'one-halving'"):
        pin_version(StudySpec.from_dict(fields).to_json())
    register([halving])
    other = StudySpec.from_dict({**fields, "tuner": {**fields["tuner"], "version": "another"}})
    world = run_simulator(other)
    assert world.plan.studies[STUDY].is_running, "it waits for a server that has its tuner"
    assert "which is the one that this server has, got another" in world.scheduler.problems()[STUDY]


FLAWED = {
    "suggest changes something": """
    def suggest(self):
        self.n = getattr(self, "n", 0) + 1
        return NewTrial(steps=self.n)
    def observe(self, event): pass
""",
    "the same history led to other decisions": """
    started, steps = 0, 0
    def suggest(self):
        return NewTrial(steps=self.steps or 1) if self.started < 3 else None
    def observe(self, event):
        self.started += event.kind == "start"
        self.steps = int(random() * 100) + 1
""",
    "the study does not end": """
    started = 0
    def suggest(self):
        return NewTrial(steps=1) if self.started < 3 else Extend(trial=0, steps=1)
    def observe(self, event):
        self.started += event.kind == "start"
""",
    "asks for what may not be": """
    started = 0
    def suggest(self):
        return NewTrial(steps=1) if self.started < 3 else Extend(trial=7, steps=2)
    def observe(self, event):
        self.started += event.kind == "start"
""",
    "it starts no trial": """
    def suggest(self): return None
    def observe(self, event): pass
""",
    "ZeroDivisionError": """
    def suggest(self): return 1 / 0
    def observe(self, event): pass
""",
}


@pytest.mark.parametrize("flaw", FLAWED)
def test_problems_of_a_tuner_are_reported(tmp_path: Path, flaw: str) -> None:
    path = file(tmp_path, f'{BASE}\nclass Wrong(Tuner):\n    name = "wrong"{FLAWED[flaw]}')
    found = [verdict.flaw for verdict in check("wrong", load(path)["wrong"]) if verdict.flaw]
    assert any(flaw in each for each in found), found
    assert CliRunner().invoke(cli, ["check-tuner", path]).exit_code == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "holds no tuner"),
        ("class Half", "cannot be run: SyntaxError"),
        ("import nothing_of_that_name", "cannot be run: ModuleNotFoundError"),
    ],
)
def test_an_unusable_file_is_reported(tmp_path: Path, text: str, sentence: str) -> None:
    path = file(tmp_path, text)
    with pytest.raises(TunerFileError, match=sentence):
        register([path])
    with pytest.raises(SystemExit, match="2"), explain_errors():
        CliRunner().invoke(cli, ["check-tuner", path], catch_exceptions=False)
    with pytest.raises(TunerFileError, match="No such file"):
        register([str(tmp_path / "nowhere.py")])


def test_two_tuners_of_one_name_are_refused(tmp_path: Path, halving: str) -> None:
    again = file(tmp_path, PAGE["halving.py"], "again.py")
    with pytest.raises(TunerFileError, match="another tuner named 'one-halving'"):
        register([halving, again])
