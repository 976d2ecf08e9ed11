"""A rate in every group of parameters: scaled where groups differ, never flattened, refused where it is not clear."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_sample_loading import Reading
from torch.optim import SGD, AdamW, Optimizer


class Grouped(Reading):
    """`groups`: what make_optimizer says of two groups."""

    groups: Any

    def make_optimizer(self, hp: dict[str, Any]) -> Optimizer:
        one, two = self.groups(hp)
        groups = [{"params": [*self.model[0].parameters()], **one}, {"params": [*self.model[2].parameters()], **two}]
        return AdamW(groups, lr=hp["lr"])


def group_values(groups: Any, *, changes: tuple[dict[str, Any], ...] = ()) -> list[tuple[float, float]]:
    trainer = Grouped()
    trainer.groups = groups
    for hp in ({"lr": 0.0, "weight_decay": 0.0}, {"lr": 0.01, "weight_decay": 0.1}, *changes):
        trainer.setup(hp)
    return [(group["lr"], group["weight_decay"]) for group in trainer.optimizer.param_groups]


@pytest.mark.parametrize(
    ("groups", "wanted"),
    [
        (lambda hp: ({"lr": hp["lr"] * 0.1, "weight_decay": 0.0}, {}), [(0.001, 0.0), (0.01, 0.1)]),
        (lambda hp: ({"lr": hp["lr"] / 4}, {"weight_decay": hp["weight_decay"]}), [(0.0025, 0.01), (0.01, 0.1)]),
        (lambda hp: ({"lr": 0.5}, {}), [(0.5, 0.1), (0.01, 0.1)]),
        (lambda hp: ({"lr_scale": 0.5}, {"weight_decay_scale": 2.0}), [(0.005, 0.1), (0.01, 0.2)]),
        (lambda hp: ({}, {}), [(0.01, 0.1), (0.01, 0.1)]),
    ],
)
def test_rates_that_differ_by_group_are_scaled(groups: Any, wanted: list[tuple[float, float]]) -> None:
    assert group_values(groups) == [pytest.approx(each) for each in wanted]
    again = ({"lr": 0.3}, {"lr": 0.01})
    assert group_values(groups, changes=again) == group_values(groups)  # the same to the bit, after any values between


@pytest.mark.parametrize(
    "groups",
    [
        lambda hp: ({"name": "muon"}, {"name": "adam"}),
        lambda hp: ({"name": "muon", "lr": hp["lr.muon"]}, {}),
        lambda hp: ({"name": "muon", "lr": hp["lr"] * 0.1}, {"name": "adam"}),
    ],
)
def test_a_group_with_a_name_has_a_rate_of_its_own(groups: Any) -> None:
    """In any order of both names, and after any values that the groups had before."""
    trainer = Grouped()
    trainer.groups = groups
    for hp in ({"lr": 0.5, "lr.muon": 0.25}, {"lr": 0.1}, {"lr.muon": 0.02}, {"lr.muon": 0.03, "lr": 0.2}):
        trainer.setup(hp)
    assert [group["lr"] for group in trainer.optimizer.param_groups] == [0.03, 0.2]


def test_a_name_that_no_group_has() -> None:
    trainer = Grouped()
    trainer.groups = lambda hp: ({"name": "muon"}, {})
    with pytest.raises(ValueError, match=r"lr\.mion: the optimizer has no group with name 'mion', but muon"):
        trainer.setup({"lr": 0.5, "lr.mion": 0.25})


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (lambda hp: ({"lr": 0.1}, {"lr": 0.2}), "groups have values of their own"),
        (lambda hp: ({"lr": hp["lr"] ** 2}, {}), "no multiple of hp"),
    ],
)
def test_ambiguous_rates_are_refused(groups: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        group_values(groups)


def test_groups_of_an_optimizer_that_looks_at_no_study_keep_their_multiples_of_its_own_rate() -> None:
    """So does a LightningModule that gives its backbone a tenth of the rate; it was refused."""
    trainer = Reading()
    groups = [{"params": [*trainer.model[0].parameters()], "lr": 0.001}, {"params": [*trainer.model[2].parameters()]}]
    trainer.make_optimizer = lambda hp: AdamW(map(dict, groups), lr=0.01)  # type: ignore[method-assign]
    trainer.setup({"lr": 0.5})
    assert [group["lr"] for group in trainer.optimizer.param_groups] == [pytest.approx(0.05), 0.5]


def test_a_rate_in_a_tensor_stays_one() -> None:
    trainer = Reading()
    trainer.make_optimizer = lambda hp: AdamW(trainer.model.parameters(), lr=torch.tensor(0.5))  # type: ignore[method-assign]
    trainer.setup({"lr": 0.25})
    assert torch.equal(trainer.optimizer.param_groups[0]["lr"], torch.tensor(0.25))


class Moving(Reading):
    """One of its groups has a momentum of its own, 0."""

    def make_optimizer(self, hp: dict[str, Any]) -> Optimizer:
        one, two = [*self.model[0].parameters()], [*self.model[2].parameters()]
        groups = [{"params": one, "momentum": hp["momentum"]}, {"params": two, "momentum": 0.0}]
        return SGD(groups, lr=hp["lr"])


@pytest.mark.parametrize("first", [0.0, 0.9])
def test_a_group_keeps_its_momentum_of_0(first: float) -> None:
    """Begun at 0, both groups took what came later; a trial that was resumed behind the change had another result."""
    trainer = Moving()
    for momentum in (first, 0.9, 0.8):
        trainer.setup({"lr": 0.01, "momentum": momentum})
    assert [group["momentum"] for group in trainer.optimizer.param_groups] == [0.8, 0.0]
