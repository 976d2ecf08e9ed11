"""A lane's result never depends on its neighbours: bit for bit at one width, and up to rounding compared with alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import NETS, Usual
from lanes import (
    NEAR,
    STEADY,
    Tiny,
    assert_same,
    distance,
    model,
    new_pack,
    on_a_cpu,
    pack_as_alone,
    reload_checkpoint,
    train_alone,
    train_packed,
    weights,
)
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from stagetree.packing.stable_width import StableWidth
from stagetree.runtime.model import HpTimeline
from stagetree.runtime.packed import PackedModels
from tests.plans import MORE

WIDTH = 4
RATES = st.sampled_from([0.0, 0.01, 0.3, 50.0, 1e30, 1e308])
OTHER_DATA = {"family": "values", "values": [0, 1], "milestones": [2]}
DECAY = {"family": "multistep", "init": 0.2, "milestones": [1, 3], "gamma": 0.1}


@st.composite
def hyperparameters(draw: Any) -> dict[str, Any]:
    """Hyper-parameters of a neighbour, which may be bad for it."""
    hp = {"lr": draw(RATES | st.just(DECAY)), "bs": draw(st.sampled_from([4, 4, 4, 7]))}
    hp |= draw(st.sampled_from([{}, {"data_seed": 0}, {"data_seed": 1}]))
    if draw(st.booleans()):
        return {**hp, "optimizer": "adamw", "weight_decay": draw(st.sampled_from([0.0, 0.5]))}
    return {**hp, "momentum": draw(st.sampled_from([0.0, 0.9]))}


@settings(max_examples=15 * MORE)
@given(
    mine=st.sampled_from([STEADY, {"lr": DECAY, "bs": 4, "optimizer": "adamw"}, {**STEADY, "data_seed": OTHER_DATA}]),
    neighbours=st.lists(hyperparameters(), max_size=WIDTH - 1),
    lane=st.integers(0, WIDTH - 1),
    leaves_at=st.integers(0, 4),
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_lane_is_the_same_to_the_bit_whoever_else_is_there(
    dtype: str, mine: dict[str, Any], neighbours: list[dict[str, Any]], lane: int, leaves_at: int
) -> None:
    by_itself = new_pack(WIDTH, [0], dtype=dtype)
    assert not train_packed(by_itself, {0: mine}, 4)
    lane = min(lane, len(neighbours))
    hps = dict(enumerate([*neighbours[:lane], mine, *neighbours[lane:]]))
    among_others = new_pack(WIDTH, hps, dtype=dtype)
    failed = train_packed(among_others, hps, leaves_at)
    assert lane not in failed
    for number in hps.keys() - {lane} - failed.keys():
        among_others.leave(number)
    assert not train_packed(among_others, {lane: mine}, 4 - leaves_at)
    assert_same(weights(among_others[lane]), weights(by_itself[0]))


@pytest.mark.slow
@settings(max_examples=3 * MORE)
@given(
    width=st.integers(2, 9),
    size=st.integers(2, 9) | st.sampled_from([16, 29, 32]),
    lane=st.integers(0, 8),
    rates=st.lists(RATES, min_size=8, max_size=8),
    more=st.sampled_from([{}, {"optimizer": "adamw"}]),
    clip=st.sampled_from([None, 0.1]),
)
@pytest.mark.parametrize("numbers", [{"dtype": "float64"}, {"dtype": "float32"}, {"precision": "bf16"}], ids=str)
@pytest.mark.parametrize("net", [pytest.param(net, marks=[on_a_cpu] * (net == "grouped")) for net in sorted(NETS)])
def test_models_of_all_kinds_are_the_same_in_any_place(
    net: str,
    numbers: dict[str, str],
    width: int,
    size: int,
    lane: int,
    rates: list[float],
    more: dict[str, Any],
    clip: float | None,
) -> None:
    how = {"net": net, "clip_grad_norm": clip, **numbers}
    mine, lane = {"lr": 0.3, "bs": size, **more}, lane % width
    neighbours = [{"lr": rate, "bs": size} for rate in rates[: width - 1]]
    by_itself = new_pack(width, [0], Usual, **how)
    assert not train_packed(by_itself, {0: mine}, 3)
    hps = dict(enumerate([*neighbours[:lane], mine, *neighbours[lane:]]))
    among_others = new_pack(width, hps, Usual, **how)
    assert lane not in train_packed(among_others, hps, 3)
    assert among_others.unpackable_reason == by_itself.unpackable_reason
    assert "precision" in numbers or not by_itself.unpackable_reason
    assert_same(weights(among_others[lane]), weights(by_itself[0]))
    assert among_others[lane].logged_means() == by_itself[0].logged_means()
    assert among_others[lane].evaluate() == by_itself[0].evaluate()


@settings(max_examples=10)
@given(hps=st.lists(hyperparameters(), min_size=1, max_size=WIDTH))
def test_in_double_precision_a_lane_is_what_the_trial_is_alone(hps: list[dict[str, Any]]) -> None:
    hps = [hp | {"lr": 0.3} if isinstance(hp["lr"], float) and hp["lr"] > 1 else hp for hp in hps]
    pack_as_alone(WIDTH, dict(enumerate(hps)), 3)


class Biased(Tiny):
    """A bias before a batch normalization has a gradient that is nothing but rounding."""

    def __init__(self, **args: Any) -> None:
        super().__init__(**args)
        layers = (nn.Linear(2, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 1))
        self.model = nn.Sequential(*layers).double()

    def make_optimizer(self, hp: dict[str, Any]) -> AdamW:
        return AdamW(self.model.parameters(), lr=hp["lr"])


def test_of_rounding_adam_makes_steps_and_nothing_else_is_off() -> None:
    """The documented exception: these two values are magnified rounding, and the others are close."""
    hp = {"lr": 0.05, "bs": 4}
    pack = new_pack(WIDTH, [0], Biased)
    assert not train_packed(pack, {0: hp}, 4) and not pack.unpackable_reason
    one, other = pack[0].trainer.model.state_dict(), train_alone(hp, 4, Biased).trainer.model.state_dict()
    off = {name for name in one if distance({name: one[name]}, {name: other[name]}) > 1e-11}
    assert off <= {"0.bias", "1.running_mean"}
    assert distance(one, other) < 1e-6


def test_where_too_few_rows_agree_it_takes_more_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "stagetree.packing.profiling.stable_width", lambda *_: StableWidth(rows=WIDTH, lanes=2, exact=False)
    )
    pack_as_alone(WIDTH, {number: {**STEADY, "lr": 0.1 / (1 + number)} for number in range(WIDTH)}, 3)


@pytest.mark.parametrize("broken", [1, 2, 3])
def test_a_break_a_checkpoint_and_another_pack_change_nothing(broken: int) -> None:
    hps = {0: {"lr": DECAY, "bs": 4, "momentum": 0.9}, 1: {"lr": 0.3, "bs": 4, "optimizer": "adamw"}}
    whole = new_pack(WIDTH, hps)
    assert not train_packed(whole, hps, 4)
    first = new_pack(WIDTH, hps)
    assert not train_packed(first, hps, broken)
    second = PackedModels(WIDTH)
    second.add(7, model())
    assert not train_packed(second, {7: STEADY}, broken)  # lane 0 of the other pack has another neighbour
    for number, hp in hps.items():
        second.add(number, reload_checkpoint(first[number], hp))
    assert not train_packed(second, {7: STEADY, **hps}, 4 - broken)
    for number in hps:
        assert_same(weights(second[number]), weights(whole[number]))


def test_a_lane_goes_on_alone_and_one_trained_alone_joins() -> None:
    pack = new_pack(WIDTH, [0])
    assert not train_packed(pack, {0: STEADY}, 2)
    went_on = pack.leave(0)
    pack.add(0, train_alone(STEADY, 2))
    assert not train_packed(pack, {0: STEADY}, 2)
    for _ in range(2):
        went_on.advance(HpTimeline(STEADY))
    wanted = weights(train_alone(STEADY, 4))
    assert distance(weights(went_on), wanted) < NEAR
    assert distance(weights(pack[0]), wanted) < NEAR


@pytest.mark.parametrize(
    "how",
    [
        {"clip_grad_norm": 0.01},
        {"micro_batch_size": 2, "drop_last": True},
        {"average_decay": 0.9},
        {"batches_per_step": None},
        {"batches_per_step": None, "steps_per_epoch": 2},
    ],
)
def test_what_a_trainer_can_ask_for_is_the_same_packed(how: dict[str, Any]) -> None:
    pack_as_alone(WIDTH, {0: STEADY, 1: {**STEADY, "lr": 0.02, "bs": 6}}, 3, **how)


def test_what_a_lane_logs_and_its_metrics_are_its_own() -> None:
    hps = {0: STEADY, 1: {**STEADY, "lr": 1.0}}
    pack = new_pack(WIDTH, hps)
    assert not train_packed(pack, hps, 2)
    for number, hp in hps.items():
        by_itself = train_alone(hp, 2)
        assert pack[number].logged_means() == pytest.approx(by_itself.logged_means())
        assert pack[number].evaluate() == pytest.approx(by_itself.evaluate())


def test_a_lane_whose_own_code_fails_ends_alone() -> None:
    class Moody(Tiny):
        def after_step(self) -> None:
            if self.hp["lr"] > 1:
                raise ArithmeticError("too much")

    hps = {0: STEADY, 1: {**STEADY, "lr": 2.0}}
    pack = new_pack(WIDTH, hps, Moody)
    failed = train_packed(pack, hps, 3)
    assert failed.keys() == {1} and "too much" in failed[1].error
    assert distance(weights(pack[0]), weights(train_alone(STEADY, 3))) < NEAR


class Named(Tiny):
    """Two groups with names, of which the first has a rate of its own."""

    def make_optimizer(self, hp: dict[str, Any]) -> Optimizer:
        first, *rest = self.model.children()
        groups = {"muon": [*first.parameters()], "adam": [each for part in rest for each in part.parameters()]}
        return SGD([{"params": params, "name": name} for name, params in groups.items()], lr=hp["lr"])


def test_groups_with_rates_of_their_own() -> None:
    """Alone through a checkpoint, and in a pack beside others: the same bits."""
    mine = {**STEADY, "lr.muon": DECAY}
    others = {**STEADY, "lr.muon": 0.3}, {"lr": DECAY, "momentum": 0.9, "bs": 4, "lr.muon": 0.3}
    whole = train_alone(mine, 4, Named)
    halfway = reload_checkpoint(train_alone(mine, 2, Named), mine, Named)
    for _ in range(2):
        halfway.advance(HpTimeline(mine))
    assert_same(weights(halfway), weights(whole))
    by_itself, among_others = new_pack(WIDTH, [0], Named), new_pack(WIDTH, range(3), Named)
    assert not train_packed(by_itself, {0: mine}, 4)
    assert not train_packed(among_others, dict(enumerate((mine, *others))), 4)
    assert_same(weights(among_others[0]), weights(by_itself[0]))
    rates = [group["lr"] for group in whole.state()["trainer"]["optimizer"]["param_groups"]]
    assert rates == [pytest.approx(0.002), 0.05]
