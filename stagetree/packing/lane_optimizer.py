"""The optimizer of one lane: its group of parameters for a segment, and copies of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stagetree.packing.rows import StackSegment

State = dict[str, Any]


class NotStackable(Exception):
    """A lane's optimizer makes its steps by itself."""


class RowGroup:
    """The parameters of a segment in one lane's model, and the group of its optimizer that they are.

    Raises `NotStackable` where they are none.
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
            raise NotStackable
        return all(inside)


def rehearsed_alone(optimizer: Optimizer) -> Callable[[], object]:
    """Its step, on copies of all that it changes; one that has hooks makes none."""
    if has_hooks(optimizer):
        return lambda: None
    twins = {each: nn.Parameter(each.detach().clone()) for group in optimizer.param_groups for each in group["params"]}
    for each in twins.values():
        each.grad = torch.zeros_like(each)
    twin = shallow_copy(optimizer)
    twin.param_groups = [{**group, "params": [twins[each] for each in group["params"]]} for group in twin.param_groups]
    twin.state = defaultdict(dict, {twins[each]: _cloned(optimizer.state.get(each, {})) for each in twins})
    return twin.step


def shallow_copy(optimizer: Optimizer) -> Optimizer:
    """With all its attributes, as `copy.copy` has not."""
    twin: Optimizer = object.__new__(type(optimizer))
    vars(twin).update(vars(optimizer))
    return twin


def _cloned(state: State) -> State:
    return {key: value.clone() if isinstance(value, Tensor) else value for key, value in state.items()}


def has_hooks(optimizer: Optimizer) -> bool:
    """Whether its step does more than its class says: a scheduler may have put one of its own there."""
    return bool(
        optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks or "step" in vars(optimizer)
    )


def _only(groups: list[dict[str, Any]]) -> dict[str, Any]:
    if len(groups) != 1:
        raise NotStackable
    return groups[0]
