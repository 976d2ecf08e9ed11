"""Numbers that an optimizer's code takes for one, and of which each lane has its own.

An optimizer that treats each number by itself does so with a row of tensors for each lane, too. Its rate is no tensor,
though, but a number of Python's: here one for each lane. Where it meets a tensor, it becomes a column; where the code
asks which of two ways to go, lanes that answer otherwise go by themselves.
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


class Disagreement(Exception):
    """Lanes do not go the same way. answers: of each of them."""

    def __init__(self, answers: Iterable[bool]) -> None:
        super().__init__("lanes do not go the same way")
        self.answers = tuple(answers)


class Misunderstood(Exception):
    """The code does what only one lane's can: with a number of one, or with several numbers of a tensor at once."""


class LaneNumber(float):
    """A number of each lane. For what knows nothing of lanes, such as `math.sqrt`, it is NaN."""

    numbers: tuple[float, ...]

    def __new__(cls, numbers: Iterable[float]) -> Self:
        made = super().__new__(cls, nan)
        made.numbers = tuple(map(float, numbers))
        return made

    def __bool__(self) -> bool:
        return agreed(map(bool, self.numbers))

    def __hash__(self) -> int:
        return hash(self.numbers)

    def item(self) -> LaneNumber:
        return self


class LaneScalar(Tensor):
    """What lanes remember in a tensor of one number each. As a tensor it is nothing: see `OnRows`."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    numbers: tuple[float, ...]

    @staticmethod
    def __new__(cls, numbers: Iterable[float]) -> LaneScalar:
        made = torch.zeros(()).as_subclass(cls)
        made.numbers = tuple(numbers)
        return made

    def item(self) -> Any:
        return LaneNumber(self.numbers)


def agreed(answers: Iterable[bool]) -> bool:
    """What all lanes answer. Raises `Disagreement`."""
    each = tuple(answers)
    if len(set(each)) != 1:
        raise Disagreement(each)
    return each[0]


def _numbers(value: Any) -> Iterator[float]:
    return iter(value.numbers) if isinstance(value, LaneNumber) else repeat(value)


def _operation(operate: Callable[..., float], is_reversed: bool = False) -> Callable[..., Any]:
    def of(self: LaneNumber, *others: Any) -> Any:
        if not all(isinstance(each, float | int) for each in others):
            return NotImplemented
        sides = [self.numbers, *map(_numbers, others)]
        return LaneNumber(operate(*each) for each in zip(*(reversed(sides) if is_reversed else sides), strict=False))

    return of


def _in_place(operate: Callable[..., float]) -> Callable[..., Any]:
    def of(self: LaneScalar, other: Any) -> Any:
        self.numbers = tuple(map(operate, self.numbers, _numbers(other)))
        return self

    return of


def _comparison(compare: Callable[[Any, Any], bool]) -> Callable[[LaneNumber, Any], bool]:
    return lambda self, other: agreed(map(compare, self.numbers, _numbers(other)))


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    _operate = getattr(operator, _name)
    setattr(LaneNumber, f"__{_name}__", _operation(_operate))
    setattr(LaneNumber, f"__r{_name}__", _operation(_operate, is_reversed=True))
    setattr(LaneScalar, f"__i{_name}__", _in_place(_operate))
for _name in ("neg", "pos", "abs"):
    setattr(LaneNumber, f"__{_name}__", _operation(getattr(operator, _name)))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(LaneNumber, f"__{_name}__", _comparison(getattr(operator, _name)))


class OnRows(TorchFunctionMode):
    """While it is entered, a `LaneNumber` may stand where torch wants a number. like: a tensor of [lanes, numbers].

    Only functions of each number by itself are called: others raise `Misunderstood`. Where torch makes one operation
    of several, such as a sum with a multiple, each is done by itself: it has one right result then (IEEE 754),
    wherever a lane lies.
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
            raise Misunderstood(name)
        plain = name.strip("_")
        if plain not in ELEMENTWISE:
            if any(isinstance(each, Tensor | float) for each in tree_leaves((args, kwargs))):
                raise Misunderstood(name)
            return func(*args, **kwargs)
        args = (self._as_column(args[0]) if isinstance(args[0], LaneScalar) else args[0], *args[1:])
        apart = APART.get(plain)
        parts = None if apart is None else apart(self, *args, **kwargs)
        if parts is not None:
            done: Tensor = getattr(args[0], parts[0] + "_" * name.endswith("_"))(parts[1])
            return done
        args, kwargs = tree_map(self._as_column, (args, kwargs))
        return func(*args, **kwargs)

    def _attribute(self, func: Callable[..., Any], tensor: Tensor) -> Any:
        name = getattr(getattr(func, "__self__", None), "__name__", "")
        if name not in ATTRIBUTES:
            raise Misunderstood(name)
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
        made: Tensor = self._as_column(tensor) * self._as_column(number)
        return made

    def _as_column(self, number: Any) -> Any:
        """[lanes, 1] of a `LaneNumber`. Raises `Misunderstood` for what has become of one that was taken for one."""
        if not isinstance(number, LaneNumber | LaneScalar):
            if isinstance(number, float) and isnan(number):
                raise Misunderstood("NaN")
            return number
        bits = array("d", number.numbers).tobytes()
        if bits not in self._made:
            if any(map(isnan, number.numbers)):
                raise Misunderstood("NaN")
            column = torch.tensor(number.numbers, dtype=self._like.dtype).unsqueeze(1)
            if self._like.device.type != "cpu":
                column = column.pin_memory().to(self._like.device, non_blocking=True)
            self._made[bits] = column
        return self._made[bits]


Parts = tuple[str, Tensor]
"""An operation, and with what it is done to the first operand."""

APART: dict[str, Callable[..., Parts | None]] = {
    each.__name__: each for each in (OnRows.add, OnRows.sub, OnRows.addcmul, OnRows.addcdiv, OnRows.lerp)
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
"""Functions of each number by itself, and their names as operators."""

ATTRIBUTES = frozenset({"data", "grad", "dtype", "device", "is_sparse", "requires_grad", "is_cuda"})
"""What may be asked of a tensor."""
