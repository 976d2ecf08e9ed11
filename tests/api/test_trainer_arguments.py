"""A trainer's arguments are checked against its constructor when a study is submitted, and nothing of it is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from toys import SMALLEST

from app.api.bodies import parse_study
from app.registry import Catalogue
from stagetree.limits import LIMITS
from stagetree.spec import SpecError

SOURCE = """
from stagetree import Trainer
class Strict(Trainer):
    name = "strict"
    def __init__(self, *, seed, device, data, width=32, num_workers: int = 0): ...
class Open(Trainer):
    name = "open"
    def __init__(self, *, seed, device, **more): ...
class Inherits(Strict):
    name = "inherits"
"""


def problems(tmp_path: Path, **fields: Any) -> dict[str, str]:
    (tmp_path / "trainer.py").write_text(SOURCE)
    try:
        parse_study({**SMALLEST, **fields}, Catalogue([str(tmp_path / "trainer.py")]), LIMITS)
    except SpecError as error:
        return {each.field: each.problem for each in error.problems}
    return {}


def test_an_unknown_and_a_missing_argument_are_named(tmp_path: Path) -> None:
    found = problems(tmp_path, trainer="strict", trainer_args={"widht": 3}, runtime_args={"workers": 2})
    assert found == {
        "trainer_args.widht": "is no argument of trainer 'strict': there are data, width, num_workers; "
        "did you mean width?",
        "runtime_args.workers": "is no argument of trainer 'strict': there are data, width, num_workers; "
        "did you mean num_workers?",
        "trainer_args.data": "is missing: trainer 'strict' has no default for it",
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"trainer": "strict", "trainer_args": {"data": "/d"}, "runtime_args": {"num_workers": 2}},
        {"trainer": "strict", "runtime_args": {"data": "/d"}},
        {"trainer": "open", "trainer_args": {"anything": 1}},
        {"trainer": "inherits", "trainer_args": {"anything": 1}},
    ],
)
def test_what_the_constructor_takes_is_let_through(tmp_path: Path, fields: dict[str, Any]) -> None:
    assert problems(tmp_path, **fields) == {}
