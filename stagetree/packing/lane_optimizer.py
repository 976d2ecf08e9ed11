"""One lane's optimizer: its parameter group in a segment, and copies of it for measurements."""

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
    """The lane's optimizer has to make its steps separately."""


class RowGroup:
    """The parameters of a segment in one lane's model, with their optimizer group.

    Raises `NotStackable` if they are not one group.
    """

    def __init__(self, segment: StackSegment, lane: int, model: nn.Module, optimizer: Optimizer) -> None:
        named = dict(model.named_parameters())
        self.lane, self.optimizer = lane, optimizer
        self.parameters = {name: named[name] for name, _, _ in segment.places}
        groups: list[dict[str, Any]] = [group for group in optimizer.param_groups if self._is_in(group)]
        if len(groups) != 1:
            raise NotStackable
        self.group = groups[0]

    def release(self) -> None:
        """Give the lane's optimizer state of its own again."""
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


def rehearse_own_step(optimizer: Optimizer) -> Callable[[], object]:
    """The optimizer's step on copies of everything it changes; a no-op for one with hooks."""
    if has_hooks(optimizer):
        return lambda: None
    twins = {each: nn.Parameter(each.detach().clone()) for group in optimizer.param_groups for each in group["params"]}
    for each in twins.values():
        each.grad = torch.zeros_like(each)
    twin = shallow_copy(optimizer)
    twin.param_groups = [{**group, "params": [twins[each] for each in group["params"]]} for group in twin.param_groups]
    twin.state = defaultdict(dict, {twins[each]: _clone_state(optimizer.state.get(each, {})) for each in twins})
    return twin.step


def shallow_copy(optimizer: Optimizer) -> Optimizer:
    """A copy with all attributes, some of which `copy.copy` drops."""
    twin: Optimizer = object.__new__(type(optimizer))
    vars(twin).update(vars(optimizer))
    return twin


def _clone_state(state: State) -> State:
    return {key: value.clone() if isinstance(value, Tensor) else value for key, value in state.items()}


def has_hooks(optimizer: Optimizer) -> bool:
    """Whether the step does more than its class: a scheduler may have patched it."""
    return bool(
        optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks or "step" in vars(optimizer)
    )
