"""Values arrive as they were written: a study over a real slot, whose trainer tells the types of its values apart."""

from __future__ import annotations

from typing import Any

from stacks import Json, Service
from typed import Forest

SWITCH = {"family": "values", "values": [1, True, 1.0, 0.0, -0.0], "milestones": [2, 3, 4, 5]}


def types_by_trial(service: Service, spec: Json) -> list[float]:
    study = service.run(spec)
    assert study["state"] == "completed"
    return [trial["value"] for trial in sorted(study["trials"], key=lambda trial: trial["trial"])]


def typed_study(tag: str, **more: Any) -> Json:
    return {"name": tag, "trainer": "typed", "trainer_args": {"tag": tag}, "metric": "types", "mode": "min", **more}


def test_values_that_python_calls_equal_are_not_taken_for_one_another(stack: Service) -> None:
    spec = typed_study("true-is-one", space={"x": [True, 1, 0, False, 1.0, 0.0, -0.0, "1", None]})
    found = types_by_trial(stack, spec | {"tuner": {"kind": "grid", "max_steps": 2}})
    assert found == [11, 22, 22, 11, 33, 33, 99, 44, 55]


def test_a_value_that_changes_by_its_type_alone_is_delivered(stack: Service) -> None:
    listed = [{"hp": {"x": x}, "steps": 7} for x in (SWITCH, 1, {"family": "linear", "init": 2, "slope": 1})]
    found = types_by_trial(stack, typed_study("switch", tuner={"kind": "trials", "trials": listed}))
    assert found == [2213399, 2222222, 2222222]


def test_ranges_give_the_type_that_their_name_says(stack: Service) -> None:
    spec = typed_study(
        "ranges", space={"x": [{"uniform": [1, 3], "step": 1}, {"randint": [1, 3]}, {"loguniform": [1, 1]}]}
    )
    tuner = {"kind": "random", "num_trials": 8, "max_steps": 1, "distinct": False}
    study = stack.run(spec | {"tuner": tuner})
    values = [(trial["hp"]["x"]["value"], trial["value"]) for trial in study["trials"]]
    assert all(code == (2 if type(value) is int else 3) for value, code in values)


def test_a_float_that_is_a_whole_number_stays_a_float(stack: Service) -> None:
    """1.0 shared the node of 1, and so showed the accuracy of a forest that looks at one feature a split."""
    options = [0.5, 1.0, 1]
    spec = {"name": "forest", "trainer": "forest", "metric": "accuracy", "mode": "max", "seed": 3}
    study = stack.run(spec | {"space": {"max_features": options}, "tuner": {"kind": "grid", "max_steps": 2}})
    shown = {repr(trial["hp"]["max_features"]["value"]): trial["value"] for trial in study["trials"]}
    assert shown == {repr(value): alone(value) for value in options}
    assert len(set(shown.values())) == 3 and study["steps"]["unique"] == 6


def alone(max_features: float) -> float:
    forest = Forest(seed=3, device="cpu")
    forest.setup({"max_features": max_features})
    for _ in range(2):
        forest.train()
    return forest.evaluate()["accuracy"]
