"""The update rules of SGD, Adam, AdamW, NAdam and Rprop as expressions over tensors with a row for each lane.

Lanes differ in coefficients, one a row, so the number of operations does not grow with the lanes. Algorithm and state
are the same as in torch's optimizers. The expressions use only additions, multiplications, divisions and square roots,
whose results IEEE 754 defines exactly. A lane's numbers therefore depend neither on its row nor on the number of lanes,
on any device. torch's own may differ in the last digit if it fuses two operations.
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

BYTES_PER_CORE = 1 << 18
"""Bytes of each tensor that a CPU core updates at once, so that all of a step's tensors fit into its cache."""


@dataclass(frozen=True, slots=True)
class OptimizerRows:
    """The operands of a step, [lanes, numbers] each. scratch: two reusable tensors; allocating them would take a CPU as
    long as the rest of the step."""

    values: Tensor
    grads: Tensor
    moments: Mapping[str, Tensor]
    scratch: Sequence[Tensor]

    def pieces(self, most: int) -> Iterator[tuple[slice, OptimizerRows]]:
        """Split into pieces of at most `most` numbers, each with its lanes; all share the scratch tensors."""
        tensors, in_a_row = (self.values, self.grads, *self.moments.values()), self.values.shape[1]
        at_once = max(most // in_a_row, 1)
        for begin in range(0, len(self.values), at_once):
            lanes = slice(begin, begin + at_once)
            parts = (torch.split(each[lanes], most, 1) for each in tensors)
            for values, grads, *rest in zip(*parts, strict=True):
                scratch = [each[: len(values), : values.shape[1]] for each in self.scratch]
                yield lanes, OptimizerRows(values, grads, dict(zip(self.moments, rest, strict=True)), scratch)


class UpdateRule(ABC):
    """An optimizer's update of parameters with a row for each lane."""

    state_names: frozenset[str]
    """State names that torch's optimizer may have for each parameter."""

    counts_steps: bool
    """Whether the state has a step count."""

    counts_with_int: bool = False
    """Whether that count is a Python number instead of a tensor."""

    products: Mapping[str, float] = {}
    """Scalars in the state that each step multiplies, with their initial values."""

    is_traced: ClassVar[bool] = False
    """Whether `change` takes the coefficients on the host, and may raise."""

    @abstractmethod
    def moments(self, group: Group) -> tuple[str, ...]:
        """The state names that are used with these hyper-parameters."""

    @abstractmethod
    def terms(self, group: Group) -> tuple[bool, ...]:
        """Which terms the expression has. Lanes that differ in them are updated separately."""

    @abstractmethod
    def coefficients(self, group: Group, steps: int, *products: float) -> tuple[float, ...]:
        """The factors of the next step after `steps` steps. products: their values after that step."""

    def growth(self, group: Group, steps: int) -> tuple[float, ...]:
        """The factors by which the next step multiplies each of the products."""
        return ()

    def next_products(
        self, group: Group, steps: int, products: Sequence[float], dtype: torch.dtype
    ) -> tuple[float, ...]:
        """The products after the next step, rounded to the dtype as torch's are."""
        kind = np.float64 if dtype == torch.float64 else np.float32
        growth = self.growth(group, steps)
        return tuple(float(kind(one) * kind(other)) for one, other in zip(products, growth, strict=True))

    @abstractmethod
    def change(self, terms: tuple[bool, ...], rows: OptimizerRows, factors: Sequence[Tensor]) -> None:
        """Update in place, with a factor for each lane, [lanes, 1].

        Reads nothing on the host, and shapes depend on shapes only.
        """

    def pieces(self, rows: OptimizerRows) -> list[tuple[slice, OptimizerRows]]:
        """The pieces to update one after the other: on a CPU each fits into the cache."""
        most = BYTES_PER_CORE // rows.values.element_size() * torch.get_num_threads()
        if self.is_traced or rows.values.device.type != "cpu" or rows.values.numel() <= most:
            return [(slice(None), rows)]
        return list(rows.pieces(most))

    def step(self, terms: tuple[bool, ...], rows: OptimizerRows, factors: Sequence[Any]) -> None:
        """`change`, piece by piece."""
        for lanes, piece in self.pieces(rows):
            self.change(terms, piece, factors if self.is_traced else [each[lanes] for each in factors])


class SGDUpdate(UpdateRule):
    """`torch.optim.SGD`, with momentum and Nesterov momentum."""

    state_names, counts_steps = frozenset({"momentum_buffer"}), False

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
        dampening = group["dampening"] if steps else 0.0  # the buffer starts as the first gradient
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


class AdamUpdate(UpdateRule):
    """`torch.optim.Adam` and `AdamW`, which decouples weight decay from the gradient."""

    state_names, counts_steps = frozenset({"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}), True

    def __init__(self, is_decoupled: bool) -> None:
        """is_decoupled: the default for groups without `decoupled_weight_decay`."""
        self._is_decoupled = is_decoupled

    def _is_weight_decay_decoupled(self, group: Group) -> bool:
        return bool(group.get("decoupled_weight_decay", self._is_decoupled))

    def moments(self, group: Group) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))

    def terms(self, group: Group) -> tuple[bool, ...]:
        return (
            bool(group["maximize"]),
            group["weight_decay"] != 0,
            self._is_weight_decay_decoupled(group),
            bool(group["amsgrad"]),
        )

    def coefficients(self, group: Group, steps: int, *products: float) -> tuple[float, ...]:
        (first, second), rate, decay = group["betas"], group["lr"], group["weight_decay"]
        step = steps + 1
        spread = (1 - second**step) ** 0.5
        decay = 1 - rate * decay if self._is_weight_decay_decoupled(group) else decay
        return rate * spread / (1 - first**step), decay, 1 - first, second, 1 - second, spread * group["eps"]

    def change(self, terms: tuple[bool, ...], rows: OptimizerRows, factors: Sequence[Tensor]) -> None:
        *how, is_ams = terms
        rate, *averaging, eps = factors
        _, mean, square = _update_moments(how, rows, averaging)
        scratch, other = rows.scratch
        if is_ams:
            most = rows.moments["max_exp_avg_sq"]
            square = torch.maximum(most, square, out=most)
        root = torch.sqrt(square, out=scratch).add_(eps)
        rows.values.addcdiv_(torch.mul(mean, rate, out=other), root, value=-1)


def _update_moments(
    how: Sequence[bool], rows: OptimizerRows, factors: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Update the moments; returns gradient, mean and mean square. how: is_up, decays, is_decoupled."""
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


class NAdamUpdate(UpdateRule):
    """`torch.optim.NAdam`."""

    state_names, counts_steps = frozenset({"exp_avg", "exp_avg_sq"}), True
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
        grads, mean, square = _update_moments(terms, rows, averaging)
        scratch, other = rows.scratch
        root = torch.div(square, spread, out=scratch).sqrt_().add_(eps)
        rows.values.addcdiv_(torch.mul(grads, rate, out=other), root, value=-1)
        rows.values.addcdiv_(torch.mul(mean, mean_rate, out=other), root, value=-1)


class RpropUpdate(UpdateRule):
    """`torch.optim.Rprop`, with a step size for each number."""

    state_names, counts_steps = frozenset({"prev", "step_size"}), True

    def moments(self, group: Group) -> tuple[str, ...]:
        return "prev", "step_size"

    def terms(self, group: Group) -> tuple[bool, ...]:
        return (bool(group["maximize"]),)

    def coefficients(self, group: Group, steps: int, *products: float) -> tuple[float, ...]:
        begin = 0.0 if steps else group["lr"]  # the step sizes start at zero in the state
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


RULES: Mapping[type[Optimizer], UpdateRule] = {
    optim.SGD: SGDUpdate(),
    optim.Adam: AdamUpdate(False),
    optim.AdamW: AdamUpdate(True),
    optim.NAdam: NAdamUpdate(),
    optim.Rprop: RpropUpdate(),
}

DTYPES = frozenset({torch.float32, torch.float64})
"""Dtypes in which separate operations lose no more digits than torch's optimizers."""

PROBE_SIZE = 4096
"""The numbers in a step that is compared with torch's."""
