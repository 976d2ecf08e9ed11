"""Studies as they are written in Python, and their names there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stagetree import GridTuner
from stagetree.client import NotFound
from stagetree.spec import SpecError
from stagetree.study import Study

FIELDS: dict[str, Any] = {"name": "mine", "trainer": "digits", "metric": "accuracy", "mode": "max"}


def test_a_study_is_opened_by_its_name(server: str) -> None:
    """The message was that there is no study of that name."""
    with Study.create(FIELDS, url=server), Study.create(FIELDS, url=server) as newer:
        for meant in ("mine", newer.id, "last"):
            with Study.open(meant, url=server) as found:
                assert found.id == newer.id
    with pytest.raises(NotFound, match="there is no study with the id or the name another"):
        Study.open("another", url=server)


class Trained:
    def train(self) -> None: ...

    def state_dict(self) -> None: ...


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"space": {"lr": {0.1, 0.2}}, "tuner": GridTuner(max_steps=1)},
         "space.lr: must be a list, since a set has no"),
        ({"space": {"lr": 0.1}, "tuner": GridTuner},
         "tuner: must be JSON or an object such as GridTuner(...), got the"),
        ({"space": {"lr": 0.1}}, "tuner: is missing: it says how to search the space"),
        ({"trainer_args": {"path": [Path("a")]}},
         "trainer_args.path[0]: must be JSON, a sequence, a distribution or a"),
        ({"trainer": Trained()}, "trainer: must be the name of a trainer, got an object of the class Trained"),
    ],
)  # fmt: skip
def test_values_beyond_json_are_reported_with_their_path(server: str, fields: dict[str, Any], problem: str) -> None:
    """That was a TypeError of the JSON encoder."""
    with pytest.raises(SpecError) as refused:
        Study.create(FIELDS | fields, url=server)
    assert str(refused.value).startswith(problem)


def test_python_values_beyond_json_are_written(server: str) -> None:
    """A function as `where` and a range were no JSON either."""
    grid = {**FIELDS, "space": {"lr": [0.1, 0.2, 0.3], "bs": range(16, 64, 16)}, "tuner": GridTuner(max_steps=1)}
    chosen = Study.create(**grid, where=lambda hp: hp["lr"].at(0) > 0.15 and hp["bs"].at(0) < 48, url=server)
    with chosen as study:
        listed = study.answer["spec"]["tuner"]["trials"]
    kept = [(trial["hp"]["lr"]["value"], trial["hp"]["bs"]["value"]) for trial in listed]
    assert kept == [(0.2, 16), (0.2, 32), (0.3, 16), (0.3, 32)]
