"""The hyper-parameters that a class reads: one that its `setup` never reads changes nothing, which is easily missed."""

from __future__ import annotations

import copy
import io
import json
import pickle
from collections.abc import Callable
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from stagetree import Trainer
from stagetree.runtime.exactness.held_values import digest_held_values
from stagetree.runtime.model import HpTimeline, Model
from stagetree.trainer.values import ReadValues

HP = {"lr": 0.1, "decay": 0.01}


class Typo(Trainer):
    """Its study has `lr`."""

    def __init__(self, *, seed: int, device: str) -> None:
        super().__init__(seed=seed, device=device)
        self.lr, self.where, self.hp = 0.05, 0.0, dict[str, Any]()

    def setup(self, hp: dict[str, Any]) -> None:
        self.hp = hp
        self.lr = hp.get("learning_rate", self.lr) + hp["decay"]

    def train(self) -> None:
        self.where += self.lr

    def evaluate(self) -> dict[str, float]:
        return {"score": self.where}

    def state_dict(self) -> dict[str, Any]:
        return {"where": self.where, "hp": self.hp}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.where = state["where"]


class Late(Typo):
    """Reads a value in its steps, from where `setup` has left all of them."""

    def train(self) -> None:
        self.where += self.hp["lr"]


class Given(Typo):
    """Does something with all values."""

    use: Callable[[dict[str, Any]], Any]

    def setup(self, hp: dict[str, Any]) -> None:
        type(self).use(hp)


def trained_model(kind: type[Trainer], steps: int = 3) -> Model:
    model = Model.build(kind, {}, 0, "cpu")
    for _ in range(steps):
        model.advance(HpTimeline(HP))
    return model


def test_a_name_that_setup_does_not_read_is_reported() -> None:
    assert trained_model(Typo).unread() == ["lr"]


def test_a_name_that_a_step_reads_counts_as_read() -> None:
    assert trained_model(Late).unread() == []


def test_no_name_is_unread_before_the_first_step() -> None:
    assert Model.build(Typo, {}, 0, "cpu").unread() == []


def test_our_own_reads_and_saves_do_not_count() -> None:
    """The trainer keeps the values: what looks at it for us goes through them."""
    model = trained_model(Typo)
    with model.given.ignoring_reads():
        digest_held_values(model.trainer, [])
    model.save()
    assert model.unread() == ["lr"]


def test_values_are_plain_once_all_are_read() -> None:
    model = trained_model(Late)
    model.set_up(HP)
    assert type(model.trainer.hp) is dict  # type: ignore[attr-defined]


EVERYTHING: list[Callable[[dict[str, Any]], Any]] = [
    lambda hp: [hp[name] for name in hp], lambda hp: dict(hp), lambda hp: dict(**hp), lambda hp: {**hp},
    lambda hp: {} | hp, lambda hp: hp | {}, lambda hp: hp.copy(), lambda hp: copy.copy(hp),
    lambda hp: copy.deepcopy(hp), lambda hp: json.dumps(hp), lambda hp: json.dumps(hp, indent=1),
    lambda hp: pickle.dumps(hp), lambda hp: {}.update(hp), lambda hp: list(hp.items()), lambda hp: list(hp.values()),
    lambda hp: sorted(hp), lambda hp: list(reversed(hp)), lambda hp: hp == HP, lambda hp: hp != HP, lambda hp: str(hp),
    lambda hp: SimpleNamespace(**hp), lambda hp: dict(MappingProxyType(hp)),
]  # fmt: skip


@pytest.mark.parametrize("use", EVERYTHING)
def test_iterating_over_values_reads_all(use: Callable[[dict[str, Any]], Any]) -> None:
    assert trained_model(type("Given", (Given,), {"use": staticmethod(use)})).unread() == []


LOOKUPS: list[Callable[[dict[str, Any]], Any]] = [
    lambda hp: hp["lr"], lambda hp: hp.get("lr"), lambda hp: "lr" in hp, lambda hp: hp.setdefault("lr", 1),
    lambda hp: hp.pop("lr"),
]  # fmt: skip


@pytest.mark.parametrize("use", LOOKUPS)
def test_a_lookup_reads_one_value(use: Callable[[dict[str, Any]], Any]) -> None:
    assert trained_model(type("Given", (Given,), {"use": staticmethod(use)})).unread() == ["decay"]


def test_setup_gets_a_dict_that_copies_to_a_plain_one() -> None:
    values = ReadValues(HP, set())
    assert isinstance(values, dict) and values == HP and len(values) == 2
    assert [type(each) for each in (copy.copy(values), copy.deepcopy(values), values | {}, values.copy())] == [dict] * 4
    file = io.BytesIO()
    torch.save(values, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == HP, "which knows few classes"


def test_yaml_writes_the_dict_of_setup() -> None:
    assert yaml.safe_load(yaml.safe_dump(ReadValues(HP, set()))) == HP
