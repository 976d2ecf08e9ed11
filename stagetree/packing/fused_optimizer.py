"""The step of the optimizers of many lanes as one step of one stock optimizer over the rows of their stack.

An optimizer of torch that treats each number by itself makes of a row what it makes of the parameters in it one by one.
Where that cannot be, each lane's own optimizer makes its step.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from stagetree.packing.rows import StackSegment
from stagetree.packing.stack import Stack

ELEMENTWISE = frozenset(
    {
        optim.SGD,  # and these three where they are not stacked: in bf16, or with a rate in a tensor
        optim.Adam,
        optim.AdamW,
        optim.NAdam,
        optim.RAdam,
        optim.Adamax,
        optim.Adagrad,
        optim.Adadelta,
        optim.RMSprop,
    }
)

State = dict[str, Any]


class RowGroup:
    """The parameters of a segment in one lane's model, and the group of its optimizer that they are.

    Raises `NotFusable` where they are none.
    """

    def __init__(self, segment: StackSegment, lane: int, model: nn.Module, optimizer: Optimizer) -> None:
        named = dict(model.named_parameters())
        self.lane, self.optimizer = lane, optimizer
        self.parameters = {name: named[name] for name, _, _ in segment.places}
        self.group: dict[str, Any] = _only([group for group in optimizer.param_groups if self._is_in(group)])

    def release(self) -> None:
        """The lane's optimizer has a state of its own again."""
        for parameter in self.parameters.values():
            state = self.optimizer.state.get(parameter, {})
            for key, value in state.items():
                state[key] = value.clone() if isinstance(value, Tensor) else value

    def _is_in(self, group: dict[str, Any]) -> bool:
        held = {id(each) for each in group["params"]}
        inside = [id(each) in held for each in self.parameters.values()]
        if any(inside) and not all(inside):
            raise NotFusable
        return all(inside)


class FusedParameters(RowGroup):
    """What one lane's optimizer has to do with one segment: a parameter that is the lane's row, with its gradient.

    Raises `NotFusable` where that is not what the optimizer would do.
    """

    def __init__(self, segment: StackSegment, lane: int, model: nn.Module, optimizer: Optimizer) -> None:
        super().__init__(segment, lane, model, optimizer)
        self._segment = segment
        self.parameter = nn.Parameter(segment.values[lane])
        self.parameter.grad = segment.grads[lane]
        self.state = self._taken_over()
        self._shown: dict[str, Any] = {}
        self.show()

    @property
    def group_of_row(self) -> dict[str, Any]:
        """With the hyper-parameters as they are now."""
        return {**self.group, "params": [self.parameter]}

    def show(self) -> None:
        """The lane's optimizer has as its state what was made of it here: views, so once is enough."""
        if all(self._shown.get(key, self) is value for key, value in self.state.items()):
            return
        self._shown = dict(self.state)
        shown: dict[str, State] = {name: {} for name in self.parameters}
        for key, value in self.state.items():
            is_row = isinstance(value, Tensor) and value.shape == self.parameter.shape
            for name, part in self._segment.parts(value) if is_row else ((name, value) for name in shown):
                shown[name][key] = part
        for name, parameter in self.parameters.items():
            self.optimizer.state[parameter] = shown[name]

    def _taken_over(self) -> State:
        """The states of the parameters in rows like theirs."""
        states = {name: self.optimizer.state.get(each, {}) for name, each in self.parameters.items()}
        keys = set().union(*states.values())
        if any(state.keys() != keys for state in states.values()):
            raise NotFusable
        return {key: self._joined(key, {name: state[key] for name, state in states.items()}) for key in sorted(keys)}

    def _joined(self, key: str, values: dict[str, Any]) -> Any:
        first = next(iter(values.values()))
        if key != "step" and isinstance(first, Tensor):
            row = torch.zeros_like(self.parameter, dtype=first.dtype)
            for name, part in self._segment.parts(row):
                if values[name].shape != part.shape:
                    raise NotFusable
                part.copy_(values[name])
            return row
        if any(bool(value != first) for value in values.values()):
            raise NotFusable
        return first.clone() if isinstance(first, Tensor) else first


class NotFusable(Exception):
    """A lane's optimizer makes its steps by itself."""


class FusedOptimizer:
    """The optimizers of a stack's lanes."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._rows: dict[int, list[FusedParameters]] = {}
        self._of: dict[int, Optimizer] = {}
        self._joint: dict[type[Optimizer], Optimizer] = {}

    def join(self, lane: int, model: nn.Module, optimizer: Optimizer) -> bool:
        """Whether the lane's optimizer is one that `step` can stand for; its state is a view into rows then."""
        if self._of.get(lane) is optimizer:
            return lane in self._rows
        self.leave(lane)
        self._of[lane] = optimizer
        try:
            self._rows[lane] = self._rows_of(lane, model, optimizer)
        except NotFusable:
            return False
        return True

    def leave(self, lane: int) -> None:
        self._of.pop(lane, None)
        for row in self._rows.pop(lane, []):
            row.release()

    def step(self, lanes: Iterable[int]) -> dict[int, Exception]:
        """Change the parameters of these lanes by their gradients; the errors of those whose optimizer failed."""
        by_kind: defaultdict[type[Optimizer], list[FusedParameters]] = defaultdict(list)
        for lane in lanes:
            by_kind[type(self._of[lane])] += self._rows[lane]
        failed: dict[int, Exception] = {}
        for kind, rows in by_kind.items():
            failed |= _step(self._joint[kind], rows)
        return failed

    def _rows_of(self, lane: int, model: nn.Module, optimizer: Optimizer) -> list[FusedParameters]:
        if type(optimizer) not in ELEMENTWISE or has_hooks(optimizer):
            raise NotFusable
        rows = [FusedParameters(segment, lane, model, optimizer) for segment in self._stack.segments]
        self._joint.setdefault(type(optimizer), copy.copy(optimizer))
        return rows


class _Groups(list[dict[str, Any]]):
    """Groups of parameters that tell which of them an optimizer came to last."""

    last = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for self.last, group in enumerate(super().__iter__()):
            yield group


def _step(joint: Optimizer, rows: Sequence[FusedParameters]) -> dict[int, Exception]:
    """A step for each row, one after the other; the errors, by lane."""
    failed: dict[int, Exception] = {}
    while rows:
        joint.param_groups = groups = _Groups(row.group_of_row for row in rows)
        joint.state = defaultdict(dict, {row.parameter: row.state for row in rows})
        error = _error_of(joint)
        if error is None:
            done, rows = rows, []
        else:  # a rate, for one, that is no number of the parameters' kind
            lane = rows[groups.last].lane
            failed[lane] = error
            done, rows = rows[: groups.last], [row for row in rows[groups.last :] if row.lane != lane]
        for row in done:
            row.state = joint.state[row.parameter]
            row.show()
    return failed


def _error_of(optimizer: Optimizer) -> Exception | None:
    try:
        optimizer.step()
    except Exception as error:
        return error
    return None


def rehearsed_alone(optimizer: Optimizer) -> Callable[[], object]:
    """Its step, on copies of all that it changes; one that has hooks makes none."""
    if has_hooks(optimizer):
        return lambda: None
    twins = {each: nn.Parameter(each.detach().clone()) for group in optimizer.param_groups for each in group["params"]}
    for each in twins.values():
        each.grad = torch.zeros_like(each)
    twin = copy.copy(optimizer)
    twin.param_groups = [{**group, "params": [twins[each] for each in group["params"]]} for group in twin.param_groups]
    twin.state = defaultdict(dict, {twins[each]: _cloned(optimizer.state.get(each, {})) for each in twins})
    return twin.step


def _cloned(state: State) -> State:
    return {key: value.clone() if isinstance(value, Tensor) else value for key, value in state.items()}


def has_hooks(optimizer: Optimizer) -> bool:
    return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)


def _only(groups: list[dict[str, Any]]) -> dict[str, Any]:
    if len(groups) != 1:
        raise NotFusable
    return groups[0]
