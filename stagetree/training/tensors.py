"""Nests of tensors, a model's modes, and running averages of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nest of dicts and lists (a tuple becomes a list, as in JSON) with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [map_tensors(item, change) for item in value]
    return value


def one_number(what: str, value: Any) -> Tensor:
    """A tensor that holds one number, without dimensions. Raises TypeError."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = f"one of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise TypeError(f"{what} must be a tensor that holds one number, got {got}")
    return value.reshape(())


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while; a part that was frozen in it before stays so."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


class Average:
    """An exponential moving average of a model's trainable parameters; its buffers are the model's own.

    decay: what is left of the average after each update. Raises ValueError.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"average_decay must be from 0 to less than 1, not {decay!r}")
        self._model, self._decay = model, decay
        self._values = {name: parameter.detach().clone() for name, parameter in self._parameters()}

    def update(self) -> None:
        """Move towards the parameters as they are now."""
        with torch.no_grad():
            for name, parameter in self._parameters():
                self._values[name].lerp_(parameter.to(self._values[name].dtype), 1 - self._decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the averages for a while; nothing is copied."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self._values)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for name, value in self._values.items():
            value.copy_(state[name])

    def _swap(self) -> None:
        for name, parameter in self._parameters():
            parameter.data, self._values[name] = self._values[name], parameter.data

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, each) for name, each in self._model.named_parameters() if each.requires_grad)
