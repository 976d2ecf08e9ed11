"""Stacked steps of many optimizers and their states equal the steps and states of torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import DEVICE, STEADY, Tiny, distance, new_pack, reload_checkpoint, train_alone, train_packed, weights
from torch import Tensor, nn
from torch.optim import ASGD, SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop, Rprop

from stagetree.packing.stack import Stack
from stagetree.packing.stacked_optimizer import StackedOptimizer
from stagetree.packing.update_rules import RULES, OptimizerRows
from tests.plans import MORE

WIDTH = 5
RATES = st.sampled_from([1e-3, 0.1, 1.0])
DECAYS = st.sampled_from([0.0, 0.01, 0.5])
NEAR = {torch.float64: 1e-13, torch.float32: 3e-6}
"""The largest relative difference after five steps: torch may fuse two operations."""


class Lion(Optimizer):
    """Chen et al. 2023: torch does not have it, and we have no rule for it."""

    def __init__(
        self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                self.change(group, each, each.grad)

    def change(self, group: dict[str, Any], each: Tensor, grad: Tensor) -> None:
        each.data.mul_(1 - group["lr"] * group["weight_decay"])
        mean = self.state[each].setdefault("exp_avg", torch.zeros_like(each))
        first, second = group["betas"]
        each.add_((mean * first + grad * (1 - first)).sign_(), alpha=-group["lr"])
        mean.mul_(second).add_(grad, alpha=1 - second)


class Counting(Lion):
    """Counts steps as a Python number, puts new tensors into its state, and branches after some steps."""

    def change(self, group: dict[str, Any], each: Tensor, grad: Tensor) -> None:
        state = self.state[each]
        if not state:
            state["step"], state["mean"] = 0, torch.zeros_like(each)
        state["step"] += 1
        state["mean"] = state["mean"].lerp(grad, 1 - group["betas"][0])
        if group["lr"] * state["step"] > 0.25:
            each.sub_(group["weight_decay"] * each)
        each.addcdiv_(
            state["mean"], grad.square().sqrt() + 1, value=-group["lr"] / (1 - group["betas"][0] ** state["step"])
        )


class Strict(Lion):
    """It raises for a rate that is too large."""

    def change(self, group: dict[str, Any], each: Tensor, grad: Tensor) -> None:
        if group["lr"] > 0.5:
            raise ArithmeticError("too much")
        super().change(group, each, grad)


class Rooted(Lion):
    """Uses a number in a way that works for a single lane only."""

    def change(self, group: dict[str, Any], each: Tensor, grad: Tensor) -> None:
        each.add_(grad, alpha=-math.sqrt(group["lr"]))


class Normed(Lion):
    """It looks at all numbers of a parameter at once."""

    def change(self, group: dict[str, Any], each: Tensor, grad: Tensor) -> None:
        each.add_(grad / grad.norm(), alpha=-group["lr"])


class Shaped(Lion):
    """Treats biases in another way."""

    def change(self, group: dict[str, Any], each: Tensor, grad: Tensor) -> None:
        each.add_(grad, alpha=-group["lr"] * each.dim())


class Elsewhere(Lion):
    """Keeps a value outside the state of any lane."""

    calls = 0

    def change(self, group: dict[str, Any], each: Tensor, grad: Tensor) -> None:
        self.calls += 1
        each.add_(grad, alpha=-group["lr"] * self.calls)


class Grouped(Lion):
    """Counts steps in its group, like schedule-free optimizers."""

    def change(self, group: dict[str, Any], each: Tensor, grad: Tensor) -> None:
        group["calls"] = group.get("calls", 0) + 1
        each.add_(grad, alpha=-group["lr"])


class Tabled(Lion):
    """It has a tensor besides its moments."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self.table = torch.ones(2)


OWN_CODE: tuple[type[Optimizer], ...] = (Lion, Counting, RMSprop, RAdam, Adadelta, Adamax)
if not Adagrad([nn.Parameter(torch.zeros(1))]).state:  # older versions of torch have state before the first step
    OWN_CODE += (Adagrad,)


@st.composite
def optimizers(draw: Any) -> tuple[type[Optimizer], dict[str, Any]]:
    kind = draw(st.sampled_from([*RULES, *OWN_CODE]))
    if kind is Rprop:
        etas, sizes = draw(st.sampled_from([(0.5, 1.2), (0.1, 3.0)])), draw(st.sampled_from([(1e-6, 50), (0.05, 0.3)]))
        return kind, {"lr": draw(RATES), "etas": etas, "step_sizes": sizes, "maximize": draw(st.booleans())}
    how = {"lr": draw(RATES), "weight_decay": draw(DECAYS), "maximize": draw(st.booleans())}
    if issubclass(kind, Lion):
        return kind, {"lr": how["lr"], "weight_decay": how["weight_decay"]}
    if kind in OWN_CODE:
        return kind, {**how, "eps": 1e-3}
    if kind is not SGD:
        betas = draw(st.sampled_from([(0.9, 0.999), (0.5, 0.9), (0.0, 0.95)]))
    if kind is NAdam:
        how |= {"momentum_decay": draw(st.sampled_from([4e-3, 0.0, 0.5])), "eps": draw(st.sampled_from([1e-8, 1e-3]))}
        return kind, {**how, "betas": betas, "decoupled_weight_decay": draw(st.booleans())}
    if kind is not SGD:
        return kind, {**how, "betas": betas, "eps": draw(st.sampled_from([1e-8, 1e-3])), "amsgrad": draw(st.booleans())}
    momentum = draw(st.sampled_from([0.0, 0.5, 0.9]))
    nesterov = bool(momentum) and draw(st.booleans())
    return kind, {**how, "momentum": momentum, "nesterov": nesterov, "dampening": 0.0 if nesterov else draw(DECAYS)}


def net(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 7), nn.Linear(7, 2)).to(dtype)


class Beside:
    """Models with stacked optimizer steps and with torch's own steps, with the same gradients."""

    def __init__(self, dtype: torch.dtype, kinds: list[tuple[type[Optimizer], dict[str, Any]]]) -> None:
        self.models, self.stock_models = ([net(dtype).to(DEVICE) for _ in kinds] for _ in range(2))
        self.optimizers, self.stock = (
            [kind(model.parameters(), **how) for model, (kind, how) in zip(models, kinds, strict=True)]
            for models in (self.models, self.stock_models)
        )
        self.stack = Stack(self.models[0], [list(self.models[0].parameters())], WIDTH)
        for lane, model in enumerate(self.models):
            self.stack.adopt(lane, model)
        self.stacked, self.made = StackedOptimizer(self.stack), [0] * len(kinds)

    def grads(self, lane: int) -> None:
        """New gradients for each step."""
        chance = torch.Generator().manual_seed(self.made[lane])
        self.made[lane] += 1
        for mine, theirs in zip(self.models[lane].parameters(), self.stock_models[lane].parameters(), strict=True):
            theirs.grad = torch.randn(mine.shape, generator=chance, dtype=torch.float64).to(mine)
            assert mine.grad is not None
            mine.grad.copy_(theirs.grad)

    def step(self, lanes: list[int]) -> None:
        for lane in lanes:
            self.grads(lane)
            assert self.stacked.join(lane, self.models[lane], self.optimizers[lane])
            self.stock[lane].step()
        assert not self.stacked.step(lanes)

    def numbers(self, lane: int) -> list[Tensor]:
        return leaves(self.models[lane], self.optimizers[lane])

    def apart(self, lane: int) -> float:
        """The largest difference of a lane from torch, relative to the largest number."""
        pairs = zip(self.numbers(lane), leaves(self.stock_models[lane], self.stock[lane]), strict=True)
        return max(float((a - b).abs().max() / b.abs().max().clamp(min=1.0)) for a, b in pairs)


def leaves(model: nn.Module, optimizer: Optimizer) -> list[Tensor]:
    """All numbers of a model and its optimizer's state, in a fixed order."""
    states = optimizer.state_dict()["state"]
    remembered = [states[number][name] for number in sorted(states) for name in sorted(states[number])]
    return [torch.as_tensor(each).detach() for each in (*model.parameters(), *remembered)]


@pytest.mark.slow
@settings(max_examples=25 * MORE)
@given(kinds=st.lists(optimizers(), min_size=1, max_size=WIDTH), data=st.data())
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_steps_and_what_is_remembered_are_torchs(dtype: torch.dtype, kinds: Any, data: st.DataObject) -> None:
    both = Beside(dtype, kinds)
    for _ in range(5):
        both.step(sorted(data.draw(st.sets(st.integers(0, len(kinds) - 1), min_size=1))))
    for lane in range(len(kinds)):
        assert both.apart(lane) < NEAR[dtype]


@settings(max_examples=15 * MORE)
@given(mine=optimizers(), others=st.lists(optimizers(), min_size=WIDTH - 1, max_size=WIDTH - 1), data=st.data())
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_step_is_the_same_to_the_bit_whoever_else_is_there(
    dtype: torch.dtype, mine: Any, others: Any, data: st.DataObject
) -> None:
    lane = data.draw(st.integers(0, WIDTH - 1))
    by_itself, among = Beside(dtype, [mine]), Beside(dtype, [*others[:lane], mine, *others[lane:]])
    for _ in range(3):
        by_itself.step([0])
        among.step(sorted(data.draw(st.sets(st.integers(0, WIDTH - 1))) | {lane}))
    assert all(one.equal(other) for one, other in zip(among.numbers(lane), by_itself.numbers(0), strict=True))


def test_momentum_that_comes_and_goes_is_torchs() -> None:
    """Its buffer begins with the undamped gradient, also after steps without momentum."""
    both = Beside(torch.float64, [(SGD, {"lr": 0.1, "momentum": 0.0, "dampening": 0.5})])
    for momentum in (0.0, 0.9, 0.9, 0.0, 0.5):
        for each in (both.optimizers[0], both.stock[0]):
            each.param_groups[0]["momentum"] = momentum
        both.step([0])
        assert both.apart(0) < NEAR[torch.float64]


@pytest.mark.parametrize(
    "how",
    [{"lr": 1e300}, {"lr": torch.tensor(0.1)}, {"lr": 0.1, "capturable": True}, {"lr": 0.1, "differentiable": True}],
    ids=str,
)
def test_what_is_no_number_of_a_lane_is_left_to_its_own_optimizer(how: Mapping[str, Any]) -> None:
    """A rate beyond single precision raises, and one in a tensor would need a synchronization."""
    both = Beside(torch.float32, [(Adam, {"lr": 0.1})])
    both.step([0])
    both.optimizers[0].param_groups[0].update(how)
    assert not both.stacked.join(0, both.models[0], both.optimizers[0])
    both.optimizers[0].param_groups[0].update({"lr": 0.1, "capturable": False, "differentiable": False})
    both.step([0])
    assert both.apart(0) < NEAR[torch.float32]


def test_other_kinds_of_numbers_and_optimizers_are_left_to_torchs() -> None:
    for dtype, kind in (
        (torch.bfloat16, SGD),
        *((torch.float32, each) for each in (ASGD, Rooted, Normed, Shaped, Elsewhere, Grouped, Tabled)),
    ):
        both = Beside(dtype, [(kind, {"lr": 0.1})])
        assert not both.stacked.join(0, both.models[0], both.optimizers[0]), kind


def test_a_lane_whose_optimizer_raises_fails_alone() -> None:
    """Regardless of which lane comes first: otherwise the grouping of others would depend on their neighbours."""
    first = Beside(torch.float64, [(Strict, {"lr": 1.0})])
    assert first.stacked.join(0, first.models[0], first.optimizers[0])
    both, fine = (Beside(torch.float64, [(Strict, {"lr": 0.1})] * 3) for _ in range(2))
    both.step([0, 1, 2])
    fine.step([0, 1, 2])
    both.optimizers[1].param_groups[0]["lr"] = 1.0
    for lane in range(3):
        both.grads(lane), fine.grads(lane)
        assert all(each.stacked.join(lane, each.models[lane], each.optimizers[lane]) for each in (both, fine))
    errors = both.stacked.step([0, 1, 2])
    assert list(errors) == [1] and "too much" in str(errors[1])
    assert not fine.stacked.step([0, 1, 2])
    for lane in (0, 2):
        assert all(one.equal(other) for one, other in zip(both.numbers(lane), fine.numbers(lane), strict=True))


def stepping(kind: type[Optimizer], **how: Any) -> type[Tiny]:
    """A trainer with this optimizer."""

    class Stepping(Tiny):
        def make_optimizer(self, hp: dict[str, Any]) -> Optimizer:
            return kind(self.model.parameters(), lr=hp["lr"], **how)

    return Stepping


@pytest.mark.parametrize("kind", [*RULES, Lion, RMSprop, Normed], ids=lambda kind: kind.__name__)
def test_with_any_optimizer_a_trial_is_what_it_is_alone_and_its_checkpoint_goes_on(kind: type[Optimizer]) -> None:
    trainer = stepping(kind, **({} if kind is Rprop else {"weight_decay": 0.1}))
    hp = {name: STEADY[name] for name in ("lr", "bs")}
    pack = new_pack(3, [0, 1], trainer)
    assert not train_packed(pack, {0: hp, 1: {**hp, "lr": 0.01}}, 2)
    assert distance(weights(pack[0]), weights(train_alone(hp, 2, trainer))) < 1e-11
    pack.add(2, reload_checkpoint(pack[0], hp, trainer))
    assert not train_packed(pack, {0: hp, 2: hp}, 2)
    assert distance(weights(pack[0]), weights(pack[2])) == 0
    assert distance(weights(pack[2]), weights(train_alone(hp, 4, trainer))) < 1e-11


@pytest.mark.parametrize(
    ("kind", "terms"),
    [
        (SGD, {"weight_decay": 0.1, "momentum": 0.9, "nesterov": True}),
        (AdamW, {"weight_decay": 0.1, "amsgrad": True}),
        (NAdam, {"weight_decay": 0.1}),
        (Rprop, {}),
    ],
)
def test_a_step_can_be_captured(kind: type[Optimizer], terms: dict[str, Any]) -> None:
    """torch finds no operation in it that reads a number on the host, or has a shape that depends on one."""
    rule, group = (RULES[kind], {**kind([nn.Parameter(torch.zeros(1))], lr=0.1, **terms).param_groups[0]})
    values, grads, *rest = (torch.linspace(0.1, 1.0, 12).view(3, 4) for _ in range(7))
    moments = dict(zip(rule.moments(group), rest, strict=False))
    table = torch.tensor([rule.coefficients(group, 2, *[0.5] * len(rule.products))] * 3).unsqueeze(2).unbind(1)
    expected, before = values.clone(), {name: each.clone() for name, each in moments.items()}
    rule.change(rule.terms(group), OptimizerRows(expected, grads, before, rest[3:]), table)
    whole = torch.compile(rule.change, fullgraph=True, backend="eager")
    whole(rule.terms(group), OptimizerRows(values, grads, moments, rest[3:]), table)
    assert values.equal(expected) and all(moments[name].equal(each) for name, each in before.items())
