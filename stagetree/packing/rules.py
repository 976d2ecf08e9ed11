"""The steps of SGD, Adam, AdamW, NAdam and Rprop, each as one expression over tensors with a row for each lane.

What lanes differ in are coefficients, a row each, so the number of operations does not grow with the lanes. torch's
optimizers are meant: the same algorithm, the same state. The expressions have additions, multiplications,
divisions and roots only, of which the result is the nearest number there is (IEEE 754). So a lane's numbers depend
neither on its place nor on how many there are, on any device; and torch's own, where two such operations are one,
may differ in the last digit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, optim
from torch.optim import Optimizer

Group = Mapping[str, Any]

AT_ONCE = 1 << 18
"""Bytes of each tensor of a step that a core of a CPU changes at once: all of them fit into its cache then."""


@dataclass(frozen=True, slots=True)
class OptimizerRows:
    """What a step is made of, [lanes, numbers] each. scratch: two, of no meaning; new memory would cost a CPU as much
    as all the rest."""

    values: Tensor
    grads: Tensor
    moments: Mapping[str, Tensor]
    scratch: Sequence[Tensor]

    def pieces(self, most: int) -> Iterator[tuple[slice, OptimizerRows]]:
        """Of at most `most` numbers, with the lanes of each; all have the same scratch."""
        tensors, in_a_row = (self.values, self.grads, *self.moments.values()), self.values.shape[1]
        at_once = max(most // in_a_row, 1)
        for begin in range(0, len(self.values), at_once):
            lanes = slice(begin, begin + at_once)
            parts = (torch.split(each[lanes], most, 1) for each in tensors)
            for values, grads, *rest in zip(*parts, strict=True):
                scratch = [each[: len(values), : values.shape[1]] for each in self.scratch]
                yield lanes, OptimizerRows(values, grads, dict(zip(self.moments, rest, strict=True)), scratch)


class Rule(ABC):
    """How an optimizer changes a parameter, as a function of tensors with a row for each lane."""

    remembered: frozenset[str]
    """All that it may remember of each number, by the names that torch's optimizer has for it."""

    counts: bool
    """Whether its state says how many steps there were."""

    counts_by_number: bool = False
    """Whether that is a number of Python's, and no tensor."""

    products: Mapping[str, float] = {}
    """Single numbers in its state, which each step multiplies, and their first values."""

    is_own_code: ClassVar[bool] = False
    """Whether `change` takes the coefficients as they are on the host, and may raise."""

    @abstractmethod
    def moments(self, group: Group) -> tuple[str, ...]:
        """The ones that it remembers with these hyper-parameters."""

    @abstractmethod
    def terms(self, group: Group) -> tuple[bool, ...]:
        """Which terms the expression has: lanes that differ in one have expressions of their own."""

    @abstractmethod
    def coefficients(self, group: Group, steps: int, *products: float) -> tuple[float, ...]:
        """The factors in the step after so many that remembered something. products: as they are after it."""

    def growth(self, group: Group, steps: int) -> tuple[float, ...]:
        """By what the step after so many multiplies each of the products."""
        return ()

    def multiplied(self, group: Group, steps: int, products: Sequence[float], dtype: torch.dtype) -> tuple[float, ...]:
        """The products after the step after so many, which are numbers of this kind, as torch has them."""
        kind = np.float64 if dtype == torch.float64 else np.float32
        growth = self.growth(group, steps)
        return tuple(float(kind(one) * kind(other)) for one, other in zip(products, growth, strict=True))

    @abstractmethod
    def change(self, terms: tuple[bool, ...], rows: OptimizerRows, factors: Sequence[Tensor]) -> None:
        """Make the step in place, with a factor for each lane, [lanes, 1].

        Nothing is read on the host, and shapes depend on nothing but shapes.
        """

    def pieces(self, rows: OptimizerRows) -> list[tuple[slice, OptimizerRows]]:
        """Of which `change` is called one after the other: on a CPU what an operation writes is in the cache then."""
        most = AT_ONCE // rows.values.element_size() * torch.get_num_threads()
        if self.is_own_code or rows.values.device.type != "cpu" or rows.values.numel() <= most:
            return [(slice(None), rows)]
        return list(rows.pieces(most))

    def step(self, terms: tuple[bool, ...], rows: OptimizerRows, factors: Sequence[Any]) -> None:
        """`change`, piece by piece."""
        for lanes, piece in self.pieces(rows):
            self.change(terms, piece, factors if self.is_own_code else [each[lanes] for each in factors])


class SGDRule(Rule):
    """`torch.optim.SGD`, with momentum and Nesterov's."""

    remembered, counts = frozenset({"momentum_buffer"}), False

    def moments(self, group: Group) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] != 0 else ()

    def terms(self, group: Group) -> tuple[bool, ...]:
        return (
            bool(group["maximize"]),
            group["weight_decay"] != 0,
            group["momentum"] != 0,
            group["dampening"] != 0,
            bool(group["nesterov"]),
        )

    def coefficients(self, group: Group, steps: int, *products: float) -> tuple[float, ...]:
        dampening = group["dampening"] if steps else 0.0  # the buffer begins with the first gradient
        return group["lr"], group["weight_decay"], group["momentum"], 1 - dampening

    def change(self, terms: tuple[bool, ...], rows: OptimizerRows, factors: Sequence[Tensor]) -> None:
        is_up, decays, has_momentum, is_damped, is_nesterov = terms
        rate, decay, momentum, damping = factors
        grads, (scratch, other) = rows.grads, rows.scratch
        if is_up:
            grads = torch.neg(grads, out=scratch)
        if decays:
            grads = torch.add(grads, torch.mul(rows.values, decay, out=other), out=scratch)
        if has_momentum:
            buffer = rows.moments["momentum_buffer"].mul_(momentum)
            buffer.add_(torch.mul(grads, damping, out=other) if is_damped else grads)
            grads = torch.add(grads, torch.mul(buffer, momentum, out=other), out=scratch) if is_nesterov else buffer
        rows.values.sub_(torch.mul(grads, rate, out=scratch))


class AdamRule(Rule):
    """`torch.optim.Adam`, and `AdamW`, which decays weights apart from the gradient."""

    remembered, counts = frozenset({"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}), True

    def __init__(self, is_decoupled: bool) -> None:
        """is_decoupled: whether weights decay apart from the gradient, where a group does not say."""
        self._is_decoupled = is_decoupled

    def _decays_apart(self, group: Group) -> bool:
        return bool(group.get("decoupled_weight_decay", self._is_decoupled))

    def moments(self, group: Group) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))

    def terms(self, group: Group) -> tuple[bool, ...]:
        return bool(group["maximize"]), group["weight_decay"] != 0, self._decays_apart(group), bool(group["amsgrad"])

    def coefficients(self, group: Group, steps: int, *products: float) -> tuple[float, ...]:
        (first, second), rate, decay = group["betas"], group["lr"], group["weight_decay"]
        step = steps + 1
        spread = (1 - second**step) ** 0.5
        decay = 1 - rate * decay if self._decays_apart(group) else decay
        return rate * spread / (1 - first**step), decay, 1 - first, second, 1 - second, spread * group["eps"]

    def change(self, terms: tuple[bool, ...], rows: OptimizerRows, factors: Sequence[Tensor]) -> None:
        *how, is_ams = terms
        rate, *averaging, eps = factors
        _, mean, square = _averaged(how, rows, averaging)
        scratch, other = rows.scratch
        if is_ams:
            most = rows.moments["max_exp_avg_sq"]
            square = torch.maximum(most, square, out=most)
        root = torch.sqrt(square, out=scratch).add_(eps)
        rows.values.addcdiv_(torch.mul(mean, rate, out=other), root, value=-1)


def _averaged(how: Sequence[bool], rows: OptimizerRows, factors: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients, and means of them and their squares after a step. how: to climb, to decay weights, to do so apart."""
    (is_up, decays, is_decoupled), (decay, new_mean, old_square, new_square) = how, factors
    mean, square = rows.moments["exp_avg"], rows.moments["exp_avg_sq"]
    grads, (scratch, other) = rows.grads, rows.scratch
    if is_up:
        grads = torch.neg(grads, out=other)
    if decays and is_decoupled:
        rows.values.mul_(decay)
    elif decays:
        grads = torch.add(grads, torch.mul(rows.values, decay, out=scratch), out=other)
    mean.add_(torch.sub(grads, mean, out=scratch).mul_(new_mean))
    square.mul_(old_square).add_(torch.mul(grads, new_square, out=scratch).mul_(grads))
    return grads, mean, square


class NAdamRule(Rule):
    """`torch.optim.NAdam`."""

    remembered, counts = frozenset({"exp_avg", "exp_avg_sq"}), True
    products: Mapping[str, float] = {"mu_product": 1.0}

    def moments(self, group: Group) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq"

    def terms(self, group: Group) -> tuple[bool, ...]:
        return bool(group["maximize"]), group["weight_decay"] != 0, bool(group["decoupled_weight_decay"])

    def growth(self, group: Group, steps: int) -> tuple[float, ...]:
        return (self._momentum(group, steps + 1),)

    def _momentum(self, group: Group, step: int) -> float:
        momentum: float = group["betas"][0] * (1.0 - 0.5 * (0.96 ** (step * group["momentum_decay"])))
        return momentum

    def coefficients(self, group: Group, steps: int, *products: float) -> tuple[float, ...]:
        (first, second), rate, decay, (product,) = group["betas"], group["lr"], group["weight_decay"], products
        now, later = self._momentum(group, steps + 1), self._momentum(group, steps + 2)
        decay = 1 - rate * decay if group["decoupled_weight_decay"] else decay
        rates = rate * (1 - now) / (1 - product), rate * later / (1 - product * later)
        return *rates, decay, 1 - first, second, 1 - second, 1 - second ** (steps + 1), group["eps"]

    def change(self, terms: tuple[bool, ...], rows: OptimizerRows, factors: Sequence[Tensor]) -> None:
        rate, mean_rate, *averaging, spread, eps = factors
        grads, mean, square = _averaged(terms, rows, averaging)
        scratch, other = rows.scratch
        root = torch.div(square, spread, out=scratch).sqrt_().add_(eps)
        rows.values.addcdiv_(torch.mul(grads, rate, out=other), root, value=-1)
        rows.values.addcdiv_(torch.mul(mean, mean_rate, out=other), root, value=-1)


class RpropRule(Rule):
    """`torch.optim.Rprop`, of which each number has a step size of its own."""

    remembered, counts = frozenset({"prev", "step_size"}), True

    def moments(self, group: Group) -> tuple[str, ...]:
        return "prev", "step_size"

    def terms(self, group: Group) -> tuple[bool, ...]:
        return (bool(group["maximize"]),)

    def coefficients(self, group: Group, steps: int, *products: float) -> tuple[float, ...]:
        begin = 0.0 if steps else group["lr"]  # each number's first size, which begins at zero
        return begin, *group["etas"], *group["step_sizes"]

    def change(self, terms: tuple[bool, ...], rows: OptimizerRows, factors: Sequence[Tensor]) -> None:
        begin, less, more, least, most = factors
        before, sizes = rows.moments["prev"], rows.moments["step_size"]
        grads, (scratch, other) = rows.grads, rows.scratch
        if terms[0]:
            grads = torch.neg(grads, out=other)
        turn = torch.mul(grads, before, out=scratch)
        same = torch.where(turn == 0, torch.ones_like(less), turn)  # NaN stays NaN
        grown = torch.where(turn > 0, more, torch.where(turn < 0, less, same))
        sizes.add_(begin).mul_(grown).clamp_(least, most)
        before.copy_(torch.where(turn < 0, torch.zeros_like(less), grads))
        rows.values.sub_(torch.sign(before, out=other).mul_(sizes))


RULES: Mapping[type[Optimizer], Rule] = {
    optim.SGD: SGDRule(),
    optim.Adam: AdamRule(False),
    optim.AdamW: AdamRule(True),
    optim.NAdam: NAdamRule(),
    optim.Rprop: RpropRule(),
}

DTYPES = frozenset({torch.float32, torch.float64})
"""In which one operation after the other loses no more digits than torch's optimizers do."""

TRIED = 4096
"""Numbers in a step that is compared with torch's."""
