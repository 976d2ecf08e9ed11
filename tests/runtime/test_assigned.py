"""Numbers that training sets, and that do not come back with the state."""

from __future__ import annotations

from typing import Any

from stagetree import Trainer
from stagetree.runtime.comparing import forgotten, set_in_training
from stagetree.runtime.model import HpTimeline, Model


class Patient(Trainer):
    """Counts in `bad` how long nothing has got better, which is 0 as long as everything does."""

    bad, best, rate, shown = 0, 0.0, 1.0, 0
    caches = ("shown",)

    def setup(self, hp: dict[str, Any]) -> None:
        self.lr = hp["lr"]

    def train(self) -> None:
        self.look()
        self.shown += 1

    def look(self) -> None:
        self.best, self.bad = (self.best + self.lr, 0) if self.lr > 0 else (self.best, self.bad + 1)

    def evaluate(self) -> dict[str, float]:
        self.measured = self.best
        return {"best": self.best}

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best = state["best"]


class Refuses(Patient):
    """Loading depends on the number: nothing can be told of it."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.bad:
            raise ValueError("loaded in the middle of a wait")
        super().load_state_dict(state)


def trained(kind: type[Trainer]) -> tuple[Model, HpTimeline]:
    model, timeline = Model.build(kind, {}, 0, "cpu"), HpTimeline({"lr": {"family": "constant", "value": 0.5}})
    model.advance(timeline)
    return model, timeline


def test_what_a_step_sets_is_seen_in_the_code() -> None:
    assert set_in_training(Patient) == ["bad", "best", "shown"]
    assert set_in_training(Refuses) == ["bad", "best", "shown"]


class Others(Patient):
    """Sets attributes of other objects, too, which have the names of none of its own."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.inner, self.weights = Inner(), [Inner()]

    def train(self) -> None:
        super().train()
        self.inner.value, self.weights[0].grad = 1.0, None
        for weight in self.weights:
            weight.data += 1.0
            weight.grad = None
        self.later, self.bad = 1, self.bad


class Inner:
    value, data, grad = 0.0, 0.0, None


def test_what_a_step_sets_of_other_objects_is_not_its_own() -> None:
    """A right trainer that clears gradients by hand was said to forget `self.grad`."""
    assert set_in_training(Others) == ["bad", "best", "later", "shown"]


def test_a_number_that_stays_what_it_was_changed_to_is_forgotten() -> None:
    model, timeline = trained(Patient)
    assert forgotten(model, timeline) == ["self.bad"]


def test_the_model_is_as_it_was() -> None:
    model, timeline = trained(Patient)
    before = dict(vars(model.trainer))
    forgotten(model, timeline)
    assert {**vars(model.trainer), "_logged": None} == {**before, "_logged": None} and model.step == 1


def test_what_raises_meanwhile_tells_nothing() -> None:
    model, timeline = trained(Refuses)
    assert forgotten(model, timeline) == []
    assert vars(model.trainer)["bad"] == 0
