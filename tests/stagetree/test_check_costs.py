"""The cost of checking a study is linear in its size or bounded: values are counted before they are listed.

The cost is the number of Python calls, which is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from cProfile import Profile
from typing import Any

import pytest

from app.api.bodies import parse_study
from app.registry import Catalogue
from app.service import study_checks
from stagetree.limits import LIMITS, JsonWalk, check_size
from stagetree.sequences import SequenceError
from stagetree.sequences.text_cache import MOST_LONG, SHORT, cached_by_text
from stagetree.space.effort import TooMuchEffort, bounded_effort, spend
from stagetree.spec import SpecError, StudySpec

Json = dict[str, Any]
RANDOM: Json = {"kind": "random", "num_trials": 2, "max_steps": 10}
GRID: Json = {"kind": "grid", "max_steps": 40}
TENTH: Json = {"uniform": [0, 0.1]}


def study(tuner: Json = RANDOM, **more: Any) -> Json:
    return {"name": "x", "trainer": "t", "metric": "accuracy", "mode": "max", "tuner": tuner, **more}


def steps(*milestones: Any) -> Json:
    return {"family": "multistep", "init": 0.1, "milestones": list(milestones), "gamma": 0.1}


GROWING: dict[str, Callable[[int], Json]] = {
    "names": lambda n: study(space={f"n{i}": 1 for i in range(n)}),
    "ranges": lambda n: study(space={f"n{i}": TENTH for i in range(n)}),
    "names of a grid": lambda n: study(GRID, space={f"n{i}": 1 for i in range(n)}),
    "values": lambda n: study(GRID, space={"lr": list(range(n))}),
    "values that where rejects": lambda n: study(GRID, space={"lr": list(range(n))}, where="lr < 0"),
    "sequences": lambda n: study(GRID, space={"lr": [steps(i + 1) for i in range(n)]}),
    "a choice inside": lambda n: study(GRID, space={"lr": {**steps(3), "init": {"choice": list(range(n))}}}),
    "milestones": lambda n: study(GRID, space={"lr": steps(*range(1, n + 1))}),
    "weights": lambda n: study(space={"lr": {"choice": list(range(n)), "weights": [1] * n}}),
    "trials": lambda n: study({"kind": "trials", "trials": [{"hp": {"lr": i / 7}, "steps": 9} for i in range(n)]}),
    "first": lambda n: study(
        {**RANDOM, "num_trials": n, "first": [{"lr": i / n / 20} for i in range(n)]}, space={"lr": TENTH}
    ),
    "num_trials": lambda n: study({**RANDOM, "num_trials": n}, space={"lr": TENTH}),
    "lengths": lambda n: study({"kind": "grid"}, space={"max_steps": list(range(1, n + 1)), "lr": [0.1, 0.2]}),
    "values of a condition": lambda n: study(
        space={"a": list(range(n)), "b": {"value": 1, "when": {"a": list(map(float, range(n)))}}}
    ),
    "conditions": lambda n: study(space={"a": [1, 2], **{f"b{i}": {"value": 1, "when": {"a": 1}} for i in range(n)}}),
    "streams": lambda n: study(space={"data": {"mix": {f"s{i}": 1 / n for i in range(n)}}}),
    "arguments": lambda n: study(space={"lr": 1}, trainer_args={f"a{i}": [[i]] for i in range(n)}),
    "ends": lambda n: study(
        {"kind": "grid"}, space={"max_steps": {"end": "lr"}, "lr": [steps(i + 1) for i in range(n)]}
    ),
}
"""Studies of n of these."""


def calls(do: Callable[[], object]) -> int:
    """How often a function is called meanwhile."""
    with Profile() as profile:
        do()
    return sum(each.callcount for each in profile.getstats())


def check(body: Json) -> None:
    with suppress(SpecError):
        parse_study(body, Catalogue([]), LIMITS)


@pytest.mark.parametrize("of", GROWING)
def test_the_cost_grows_with_the_number(of: str) -> None:
    check(GROWING[of](3))  # warm up: it imports modules
    few, many = (calls(lambda size=size: check(GROWING[of](size))) for size in (30, 120))  # type: ignore[misc]
    assert many < 6 * few + 10_000, f"{few:,} calls for 30, and {many:,} for 120"


MANY: dict[str, tuple[Json, str]] = {
    "names": (study(space={f"n{i}": 1 for i in range(22_000)}), "must name at most 1,000 hyper-parameters"),
    "names of a trial": (study({"kind": "trials", "trials": [{"hp": {f"n{i}": 1 for i in range(22_000)}, "steps": 1}]}),
        "must name at most 1,000 hyper-parameters"),
    "unknown fields": (study(space={"lr": 1}) | {f"zz{i}": 1 for i in range(22_000)}, "is not a field here"),
    "wrong trials": (study({"kind": "trials", "trials": [{"hp": 1}] * 22_000}), "must be an object"),
    "lengths and values": (study({"kind": "grid"}, space={"max_steps": list(range(1, 2001)), "lr": list(range(2000))}),
        "to check it, more than 25,000 values would have to be tried"),
    "a where that rejects all": (study(space={f"n{i}": 1 for i in range(900)}, where="n1 == 2"),
        "to check it, more than 25,000 values would have to be tried"),
}  # fmt: skip
"""Studies whose check once took minutes, and their problems."""


@pytest.mark.parametrize("of", MANY)
def test_oversized_studies_are_refused_at_once(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_checks, "MOST_VALUES", 25_000)
    body, problem = MANY[of]
    refused: list[SpecError] = []

    def refuse() -> None:
        try:
            parse_study(body, Catalogue([]), LIMITS)
        except SpecError as error:
            refused.append(error)

    assert calls(refuse) < 3_000_000
    assert problem in str(refused[0])
    assert len(refused[0].problems) <= 101


def test_the_places_of_values_are_not_written_out() -> None:
    """The places of 100,000 items under a name of 100,000 characters are 10 GB of text."""
    long = {"a" * 100_000: [0] * 100_000}
    assert sum(1 for _ in JsonWalk(long)) == 100_003
    with pytest.raises(SequenceError, match="below names of more than 1,000 characters"):
        check_size(long)


def test_the_place_of_an_item_is_known_while_walking() -> None:
    walk = JsonWalk({"a": [1, {"b": "x"}], "c": None})
    assert [(item, walk.path) for item in walk if type(item) is not list and type(item) is not dict] == [
        ("a", ""), (1, "a[0]"), ("b", "a[1]"), ("x", "a[1].b"), ("c", ""), (None, "c"),
    ]  # fmt: skip


def test_patterns_that_backtrack_see_no_long_text() -> None:
    digits = study(space={"lr": "1" * 500_000})
    listlike = study(space={"lr": {**steps(1), "init": ", got [" * 70_000}})
    StudySpec.from_dict(digits)
    with pytest.raises(SpecError):
        StudySpec.from_dict(listlike)


def test_effort_is_counted_only_within_a_bound() -> None:
    spend(10**9)
    with bounded_effort(10):
        spend(10)
        with pytest.raises(TooMuchEffort):
            spend(1)
    spend(10**9)


def test_a_cache_keeps_few_long_texts() -> None:
    made: list[str] = []

    @cached_by_text(maxsize=1000)
    def length(text: str) -> int:
        made.append(text)
        return len(text)

    short, long = ([str(n).zfill(size) for n in range(2 * MOST_LONG)] for size in (SHORT, SHORT + 1))
    for text in (*short, *long, *short, *long):
        assert length(text) == len(text)
    assert len(made) == len(short) + 2 * len(long)


def test_a_checked_study_can_go_to_another_process() -> None:
    import pickle

    spec = StudySpec.from_dict(study(space={"lr": [0.1, 0.2]}, where="lr < 1"))
    assert spec.search_space.is_empty() is False and spec.first == []
    again = pickle.loads(pickle.dumps(spec))
    assert again == spec and again.to_json() == spec.to_json()
