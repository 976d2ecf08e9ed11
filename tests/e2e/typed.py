"""Trainers whose results depend on the type of a hyper-parameter, as scikit-learn's `max_features` does."""

from __future__ import annotations

from math import copysign
from typing import Any

from stagetree import Trainer

CODES = {bool: 1, int: 2, float: 3, str: 4, type(None): 5}
"""What a step adds to the digits of the result, by the type of `x`."""


class Typed(Trainer):
    """Its result has a digit for each step, which is the type of `x` there; 9 for -0.0."""

    name = "typed"

    def __init__(self, *, seed: int, device: str, tag: str = "") -> None:
        self.digits, self.x = 0, None

    def setup(self, hp: dict[str, Any]) -> None:
        self.x = hp["x"]

    def train(self) -> None:
        is_negative_zero = self.x == 0 and isinstance(self.x, float) and copysign(1, self.x) < 0
        self.digits = 10 * self.digits + (9 if is_negative_zero else CODES[type(self.x)])

    def evaluate(self) -> dict[str, float]:
        return {"types": self.digits}

    def state_dict(self) -> dict[str, Any]:
        return {"digits": self.digits}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.digits = state["digits"]


class Forest(Trainer):
    """A random forest, a few trees a step. max_features: 1 is one feature of the 64, 1.0 is all of them."""

    name = "forest"

    def __init__(self, *, seed: int, device: str) -> None:
        self.seed, self.steps, self.options = seed, 0, dict[str, Any]()

    def setup(self, hp: dict[str, Any]) -> None:
        self.options |= hp

    def train(self) -> None:
        self.steps += 1

    def evaluate(self) -> dict[str, float]:
        from sklearn.datasets import load_digits  # tests that only name this trainer do without
        from sklearn.ensemble import RandomForestClassifier

        inputs, classes = load_digits(return_X_y=True)
        forest = RandomForestClassifier(
            n_estimators=2 * self.steps, random_state=self.seed, max_depth=6, **self.options
        )
        forest.fit(inputs[:600], classes[:600])
        features = forest.estimators_[0].max_features_
        return {"accuracy": forest.score(inputs[600:], classes[600:]), "features": features}

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "options": dict(self.options)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.options = state["steps"], dict(state["options"])
