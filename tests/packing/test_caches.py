"""On a CPU a pack is computed in parts that fit into a core's cache. The parts do not change a lane's bits."""

from __future__ import annotations

import gc
from typing import Any, ClassVar

import pytest
import torch
from kinds import Usual, trainer
from lanes import STEADY, Moody, assert_same, distance, new_pack, train_alone, train_packed, weights
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from stagetree.packing import Lane
from stagetree.packing.loss import Loss
from stagetree.packing.stable_width import MAX_SAVED_BYTES
from stagetree.packing.update_rules import RULES, OptimizerRows
from stagetree.trainer import generators

LANES, IN_A_ROW = 5, 24


@pytest.mark.parametrize("most", [1, 7, IN_A_ROW, 2 * IN_A_ROW, 3 * IN_A_ROW + 1, LANES * IN_A_ROW])
@pytest.mark.parametrize(("kind", "terms"), [(SGD, {"momentum": 0.9, "nesterov": True}), (AdamW, {"amsgrad": True})])
def test_a_step_in_pieces_has_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, most: int, kind: Any, terms: dict[str, Any]
) -> None:
    rule, chance = RULES[kind], torch.Generator().manual_seed(0)
    groups = [
        kind([nn.Parameter(torch.zeros(1))], lr=0.1 * (1 + lane), weight_decay=0.1, **terms).param_groups[0]
        for lane in range(LANES)
    ]
    table = torch.tensor([rule.coefficients(group, 2) for group in groups]).unsqueeze(2).unbind(1)

    def rows() -> OptimizerRows:
        chance.manual_seed(0)
        values, grads, *rest = (torch.rand(LANES, IN_A_ROW, generator=chance) for _ in range(7))
        names = rule.moments(groups[0])
        return OptimizerRows(values, grads, dict(zip(names, rest, strict=False)), rest[3:])

    whole, pieces = rows(), rows()
    rule.change(rule.terms(groups[0]), whole, table)
    monkeypatch.setattr("stagetree.packing.update_rules.BYTES_PER_CORE", 4 * most)
    rule.step(rule.terms(groups[0]), pieces, table)
    assert pieces.values.equal(whole.values) and pieces.grads.equal(whole.grads)
    assert all(pieces.moments[name].equal(each) for name, each in whole.moments.items())


class Large(Usual):
    """In a pass with others, its sigmoids and norms have other last bits than alone."""

    name = "large"


class LargeAndMoody(Moody):
    name = "large-and-moody"


def test_large_models_are_computed_one_by_one_as_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stagetree.packing.stable_width.MAX_SAVED_BYTES", 0)
    hps = {number: {"lr": 0.01 * (1 + number), "bs": 8, "optimizer": "asgd"} for number in range(3)}
    pack = new_pack(3, hps, Large, net="dropping")
    assert not train_packed(pack, hps, 3) and not pack.unpackable_reason
    profile = pack.profile()
    assert profile is not None and profile.is_exact and not profile.other_draws and set(profile.packed) == {2, 3}
    for number, hp in hps.items():
        assert_same(weights(pack[number]), weights(train_alone(hp, 3, Large, net="dropping")))
        assert pack[number].logged_means() == train_alone(hp, 3, Large, net="dropping").logged_means()


class Counting(Moody):
    """Counts the existing floating-point tensors when its loss begins."""

    name = "counting"
    counts: ClassVar[list[int]] = []

    def loss(self, batch: list[Tensor]) -> Tensor:
        tensors = (each for each in gc.get_objects() if issubclass(type(each), Tensor))  # a dead proxy has no class
        self.counts.append(sum(each.is_floating_point() for each in tensors))
        return super().loss(batch)


def test_no_gradient_of_a_lane_is_held_while_the_next_one_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its memory and the next lane's share the cache, which took 5 % of the time of large models."""
    monkeypatch.setattr("stagetree.packing.stable_width.MAX_SAVED_BYTES", 0)
    pack = new_pack(3, range(3), Counting, batches_per_step=1)
    assert not train_packed(pack, dict.fromkeys(range(3), STEADY), 3)
    Counting.counts.clear()
    assert not train_packed(pack, dict.fromkeys(range(3), STEADY), 1)
    first, *others = Counting.counts
    assert others == [first, first]


def test_of_a_large_model_with_adamw_no_equal_bits_are_claimed_that_its_steps_have_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The groups of torch's AdamW have an entry that is not an argument of AdamW."""
    monkeypatch.setattr("stagetree.packing.stable_width.MAX_SAVED_BYTES", 0)
    hp = {"lr": 0.01, "bs": 8, "optimizer": "adamw"}
    pack = new_pack(2, [0], Large, net="dropping")
    assert not train_packed(pack, {0: hp}, 3) and not pack.unpackable_reason
    profile, off = pack.profile(), distance(weights(pack[0]), weights(train_alone(hp, 3, Large, net="dropping")))
    assert profile is not None and not (profile.is_exact and off)


def test_one_of_them_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stagetree.packing.stable_width.MAX_SAVED_BYTES", 0)
    hps = {number: {**STEADY, "lr": lr} for number, lr in enumerate((0.05, 6.0, 0.02))}
    pack = new_pack(3, hps, LargeAndMoody)
    assert train_packed(pack, hps, 2).keys() == {1}
    few = new_pack(3, [2], LargeAndMoody)
    assert not train_packed(few, {2: hps[2]}, 2)
    assert_same(weights(few[2]), weights(pack[2]))


@pytest.mark.parametrize(
    ("path", "name", "is_large"),
    [
        ("benchmarks/data/mlp.py", "Mlp", False),
        ("examples/digits/trainer.py", "Digits", False),
        ("examples/charlm/trainer.py", "CharLM", True),
    ],
)
def test_what_is_large(path: str, name: str, is_large: bool) -> None:
    model = trainer(path, name)(seed=0, device="cpu")
    model.setup({"lr": 0.01, "bs": 32})
    batch, _ = Lane(model, "cpu", generators.state("cpu"), 0).first_batch()
    assert (Loss(model).saved_bytes(batch) > MAX_SAVED_BYTES) == is_large
