"""A study whose tuner cannot begin is refused, in a sentence with the field."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from app.cli.commands import app as cli
from app.search.tuners.base import REGISTERED
from app.service.study_checks import check_tuner
from app.tuner_files import register
from stagetree.spec import SpecError, StudySpec

WSD = {"family": "wsd", "peak": 0.05, "warmup": 0, "stable_until": 6, "decay": 4}
TUNERS = """
from app.search.tuners import *

class CannotBegin(Tuner):
    name = "cannot-begin"
    def __init__(self, spec):
        super().__init__(spec)
        raise FileNotFoundError("no curves.json")
    def suggest(self): pass
    def observe(self, event): pass

class AsksInVain(Tuner):
    name = "asks-in-vain"
    def suggest(self): return "a trial"
    def observe(self, event): pass
"""


@pytest.fixture(autouse=True)
def register_tuners(tmp_path: Path) -> Iterator[None]:
    before, path = dict(REGISTERED), tmp_path / "tuners.py"
    path.write_text(TUNERS)
    register([str(path)])
    yield
    REGISTERED.clear()
    REGISTERED.update(before)


def study(tuner: dict[str, Any], **space: Any) -> StudySpec:
    fields = {"name": "end", "trainer": "sine", "metric": "val_loss", "mode": "min", "tuner": tuner, "space": space}
    return StudySpec.from_dict(fields)


END = {"end": "lr"}
LR_AND_ITS_LENGTH = {"lr": {**WSD, "final": {"choice": [0, 0.05]}}, "max_steps": END}
SOME_HAVE_NONE = {"decays": [True, False], "lr": {"value": WSD, "when": {"decays": True}}, "max_steps": END}
LINEAR = {"family": "linear", "init": 0.1, "slope": 0.1}
NEVER_ENDS = {"lr": {"choice": [WSD, LINEAR]}, "max_steps": END}
CUSTOM = {"kind": "custom", "name": "cannot-begin"}
CASES = [
    ({"kind": "grid"}, LR_AND_ITS_LENGTH, "space.max_steps.end", '"final": 0.05, "shape": "linear"}, which stays at'),
    ({"kind": "grid"}, SOME_HAVE_NONE, "space.max_steps.end", "of every trial: some have no lr"),
    ({"kind": "grid"}, NEVER_ENDS, "space.max_steps.end", "which changes without an end"),
    (CUSTOM, {"lr": 0.1}, "tuner", "the tuner failed: FileNotFoundError: no curves.json"),
    ({**CUSTOM, "name": "asks-in-vain"}, {"lr": {"uniform": [0, 1]}}, "tuner", "its first decision: the tuner failed"),
]


@pytest.mark.parametrize(("tuner", "space", "field", "problem"), CASES)
def test_a_refused_tuner_names_the_field(tuner: dict[str, Any], space: Any, field: str, problem: str) -> None:
    spec = study(tuner, **space).fill_in(0)
    with pytest.raises(SpecError) as refused:
        check_tuner(spec)
    (found,) = refused.value.problems
    assert found.field == field and problem in found.problem and "\n" not in found.problem


def test_random_trials_skip_endless_values() -> None:
    check_tuner(study({"kind": "random", "num_trials": 4, "sampling_seed": 0, "distinct": False}, **LR_AND_ITS_LENGTH))


def test_a_long_list_of_trials_is_not_made_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.service.study_checks.MOST_LISTED", 3)
    monkeypatch.delattr("app.service.study_checks.TunerDriver")
    check_tuner(study({"kind": "grid", "max_steps": 5}, lr=[0.1, 0.2, 0.3, 0.4]))


def test_preview_prints_the_line(tmp_path: Path) -> None:
    path = tmp_path / "end.yaml"
    path.write_text(yaml.safe_dump(study({"kind": "grid"}, **LR_AND_ITS_LENGTH).to_json()))
    answer = CliRunner().invoke(cli, ["preview", str(path)])
    assert isinstance(answer.exception, SpecError) or answer.exit_code == 2
    assert "space.max_steps.end: must name a hyper-parameter that comes to an end" in str(answer.exception)
