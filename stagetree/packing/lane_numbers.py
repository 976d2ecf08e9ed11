"""Scalars of an optimizer's code that have one value a lane.

An elementwise optimizer works on a tensor with a row for each lane too, but its learning rate is a Python number. Here
that number holds one value a lane. It becomes a column in operations with a tensor. If the code branches on it, lanes
with different answers are run separately.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from math import isnan, nan
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map


class LaneDisagreement(Exception):
    """Lanes take different branches. answers: one a lane."""

    def __init__(self, answers: Iterable[bool]) -> None:
        super().__init__("lanes do not go the same way")
        self.answers = tuple(answers)


class UnsupportedOperation(Exception):
    """The code needs a single lane: it uses a number as one value, or combines several numbers of a tensor."""


class LaneNumber(float):
    """One number a lane. Code that does not know lanes, such as `math.sqrt`, sees NaN."""

    numbers: tuple[float, ...]

    def __new__(cls, numbers: Iterable[float]) -> Self:
        made = super().__new__(cls, nan)
        made.numbers = tuple(map(float, numbers))
        return made

    def __bool__(self) -> bool:
        return common_answer(map(bool, self.numbers))

    def __hash__(self) -> int:
        return hash(self.numbers)

    def item(self) -> LaneNumber:
        return self


class LaneScalar(Tensor):
    """Scalar tensor state, one number a lane. Its tensor value is unused: see `RowMode`."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    numbers: tuple[float, ...]

    @staticmethod
    def __new__(cls, numbers: Iterable[float]) -> LaneScalar:
        made = torch.zeros(()).as_subclass(cls)
        made.numbers = tuple(numbers)
        return made

    def item(self) -> Any:
        return LaneNumber(self.numbers)


def common_answer(answers: Iterable[bool]) -> bool:
    """The answer of all lanes. Raises `LaneDisagreement`."""
    each = tuple(answers)
    if len(set(each)) != 1:
        raise LaneDisagreement(each)
    return each[0]


def _numbers(value: Any) -> Iterator[float]:
    return iter(value.numbers) if isinstance(value, LaneNumber) else repeat(value)


def _operation(operate: Callable[..., float], is_reversed: bool = False) -> Callable[..., Any]:
    def method(self: LaneNumber, *others: Any) -> Any:
        if not all(isinstance(each, float | int) for each in others):
            return NotImplemented
        sides = [self.numbers, *map(_numbers, others)]
        return LaneNumber(operate(*each) for each in zip(*(reversed(sides) if is_reversed else sides), strict=False))

    return method


def _augmented_assignment(operate: Callable[..., float]) -> Callable[..., Any]:
    def method(self: LaneScalar, other: Any) -> Any:
        self.numbers = tuple(map(operate, self.numbers, _numbers(other)))
        return self

    return method


def _comparison(compare: Callable[[Any, Any], bool]) -> Callable[[LaneNumber, Any], bool]:
    return lambda self, other: common_answer(map(compare, self.numbers, _numbers(other)))


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    _operate = getattr(operator, _name)
    setattr(LaneNumber, f"__{_name}__", _operation(_operate))
    setattr(LaneNumber, f"__r{_name}__", _operation(_operate, is_reversed=True))
    setattr(LaneScalar, f"__i{_name}__", _augmented_assignment(_operate))
for _name in ("neg", "pos", "abs"):
    setattr(LaneNumber, f"__{_name}__", _operation(getattr(operator, _name)))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(LaneNumber, f"__{_name}__", _comparison(getattr(operator, _name)))


class RowMode(TorchFunctionMode):
    """A mode in which a `LaneNumber` may stand for a number in torch calls. like: a tensor of [lanes, numbers].

    Only elementwise functions are allowed; others raise `UnsupportedOperation`. A fused operation, such as an addition
    of a multiple, is split into its parts: each has one correct result (IEEE 754), whichever row a lane has.
    """

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self._like = like
        self._made: dict[bytes, Tensor] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name == "__get__":
            return self._attribute(func, args[0])
        if name.endswith("_") and isinstance(args[0], LaneScalar):
            raise UnsupportedOperation(name)
        plain = name.strip("_")
        if plain not in ELEMENTWISE:
            if any(isinstance(each, Tensor | float) for each in tree_leaves((args, kwargs))):
                raise UnsupportedOperation(name)
            return func(*args, **kwargs)
        args = (self._column(args[0]) if isinstance(args[0], LaneScalar) else args[0], *args[1:])
        apart = DECOMPOSITIONS.get(plain)
        parts = None if apart is None else apart(self, *args, **kwargs)
        if parts is not None:
            done: Tensor = getattr(args[0], parts[0] + "_" * name.endswith("_"))(parts[1])
            return done
        args, kwargs = tree_map(self._column, (args, kwargs))
        return func(*args, **kwargs)

    def _attribute(self, func: Callable[..., Any], tensor: Tensor) -> Any:
        name = getattr(getattr(func, "__self__", None), "__name__", "")
        if name not in ATTRIBUTES:
            raise UnsupportedOperation(name)
        return tensor if name == "data" else func(tensor)

    def add(self, one: Tensor, other: Any, *, alpha: Any = None) -> Parts | None:
        return None if alpha is None else ("add", self._times(other, alpha))

    def sub(self, one: Tensor, other: Any, *, alpha: Any = None) -> Parts | None:
        return None if alpha is None else ("sub", self._times(other, alpha))

    def addcmul(self, one: Tensor, first: Tensor, second: Tensor, *, value: Any = 1) -> Parts:
        return "add", self._times(first, value) * second

    def addcdiv(self, one: Tensor, first: Tensor, second: Tensor, *, value: Any = 1) -> Parts:
        return "add", self._times(first, value) / second

    def lerp(self, one: Tensor, end: Tensor, weight: Any) -> Parts:
        return "add", self._times(end - one, weight)

    def _times(self, tensor: Any, number: Any) -> Tensor:
        made: Tensor = self._column(tensor) * self._column(number)
        return made

    def _column(self, number: Any) -> Any:
        """[lanes, 1] of a `LaneNumber`. Raises `UnsupportedOperation` for a NaN, the result of using one as a single
        number."""
        if not isinstance(number, LaneNumber | LaneScalar):
            if isinstance(number, float) and isnan(number):
                raise UnsupportedOperation("NaN")
            return number
        bits = array("d", number.numbers).tobytes()
        if bits not in self._made:
            if any(map(isnan, number.numbers)):
                raise UnsupportedOperation("NaN")
            column = torch.tensor(number.numbers, dtype=self._like.dtype).unsqueeze(1)
            if self._like.device.type != "cpu":
                column = column.pin_memory().to(self._like.device, non_blocking=True)
            self._made[bits] = column
        return self._made[bits]


Parts = tuple[str, Tensor]
"""An in-place operation, and its second operand."""

DECOMPOSITIONS: dict[str, Callable[..., Parts | None]] = {
    each.__name__: each for each in (RowMode.add, RowMode.sub, RowMode.addcmul, RowMode.addcdiv, RowMode.lerp)
}

ARITHMETIC = ("add", "sub", "mul", "div", "truediv", "pow")

ELEMENTWISE = frozenset(
    [
        *(prefix + name for name in ARITHMETIC for prefix in ("", "r", "i")),
        *("neg", "abs", "sign", "sqrt", "rsqrt", "square", "reciprocal", "exp", "log", "tanh", "sigmoid"),
        *("maximum", "minimum", "clamp", "clamp_min", "clamp_max", "where", "nan_to_num", "copysign"),
        *("addcmul", "addcdiv", "lerp", "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isfinite"),
        *("zeros_like", "ones_like", "full_like", "clone", "detach", "copy", "zero", "fill", "masked_fill"),
        *("is_complex", "is_floating_point"),
    ]
)
"""Elementwise functions, also by their operator names."""

ATTRIBUTES = frozenset({"data", "grad", "dtype", "device", "is_sparse", "requires_grad", "is_cuda"})
"""Tensor attributes that may be read."""
