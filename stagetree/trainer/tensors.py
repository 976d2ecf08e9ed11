"""Helpers for tensors: nests of them, means over parts of a batch, module modes, and averages of parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stagetree.trainer.divided_tensors import Parted, is_divided, local, reshard_like

Mean = Tensor | tuple[Tensor, Tensor | int]
"""A mean, as one number or as (sum, count)."""


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """An integer of at least `least`; 32.0 counts as one. Raises ValueError."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or value < least or not float(value).is_integer():
        raise ValueError(f"{name} must be a whole number from {least} on, not {value!r}")
    return int(value)


def map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """The same nest of dicts and lists (a tuple becomes a list, as in JSON) with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [map_tensors(item, change) for item in value]
    return value


def shorten_samples(batch: Any, length: int) -> Any:
    """Cut samples to their first positions: of each tensor (B, T, ...), T. Raises ValueError if they are shorter."""
    there: list[int] = []
    map_tensors(batch, lambda tensor: there.extend(tensor.shape[1:2]))
    if length > max(there, default=0):
        raise ValueError(f"seq_len must be at most the positions of a sample, {max(there, default=0)}, not {length}")
    return map_tensors(batch, lambda tensor: tensor[:, :length] if tensor.dim() > 1 else tensor)


def first_tensor(value: Any) -> Tensor | None:
    """The first tensor of a nest, if there is one."""
    if isinstance(value, Tensor):
        return value
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return next((tensor for item in items if (tensor := first_tensor(item)) is not None), None)


def copy_state(state: Any, device: str) -> Any:
    """An optimizer's state with copies of the tensors that the optimizer would otherwise change in place."""
    return map_tensors(state, lambda tensor: tensor.clone() if device == "cpu" or tensor.dim() == 0 else tensor)


def one_number(subject: str, value: Any) -> Tensor:
    """A tensor with one element, without dimensions. Raises TypeError."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = f"one of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise TypeError(f"{subject} must be a tensor that holds one number, got {got}")
    return value.reshape(())


def sum_and_count(subject: str, value: Any) -> tuple[Tensor, Tensor] | None:
    """The two tensors of a mean given as (sum, count); None for a mean given as one number. Raises TypeError."""
    if not isinstance(value, tuple | list):
        return None
    if len(value) != 2:
        raise TypeError(f"{subject} must be a mean, or (sum, count), got {len(value)} values")
    total = one_number(f"the sum of {subject}", value[0])
    count = one_number(f"the count of {subject}", torch.as_tensor(value[1], device=total.device))
    return total, count.detach().to(torch.float64 if total.device.type == "cpu" else torch.float32)


def one_mean(subject: str, value: Any) -> Tensor:
    """A mean, or (sum, count), as one number without dimensions; the sum if the count is 0. Raises TypeError."""
    pair = sum_and_count(subject, value)
    return one_number(subject, value) if pair is None else _divide(*pair)


class PartMeans:
    """Makes the gradients of a batch's parts add up to that of the mean over the whole batch.

    The count of the whole batch is complete after its last part. Until then parts are divided by an estimate, which
    keeps losses near the mean for scaled half precision; the accumulated gradient is corrected at the end.
    """

    _shares: float

    def __init__(self) -> None:
        self._forget()

    def take(self, subject: str, value: Any, share: float) -> Tensor:
        """The loss of a part with this share of the samples. Raises TypeError."""
        pair = sum_and_count(subject, value)
        if pair is None or share == 1.0:
            mean = one_mean(subject, value)
            return mean if share == 1.0 else mean * share
        total, count = pair
        if self._shares == 0.0:
            self._estimate, self._count = count.clamp(min=1) / share, torch.zeros_like(count)
        self._shares, self._count = self._shares + share, self._count + count
        return _divide(total, self._estimate)

    def put_right(self, parameters: Iterable[nn.Parameter]) -> None:
        """After the last part of a batch, correct the gradients for the count of the whole batch."""
        if self._shares < 1 - 1e-6:
            return
        factor = self._estimate / self._count.clamp(min=1)
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor.to(parameter.grad.dtype))
        self._forget()

    def _forget(self) -> None:
        self._shares, self._estimate, self._count = 0.0, torch.ones(()), torch.zeros(())

    def refuse_rest(self) -> None:
        """Raises ValueError if parts of a batch are missing."""
        if self._shares:
            raise ValueError(
                f"the loss is (sum, count), and the shares given to `accumulate` add up to {self._shares:.3g}: "
                "give the parts of one batch shares that add up to 1"
            )


class ShardMeans:
    """Makes the losses of shards add up to the mean over the whole batch; replaces `PartMeans`.

    The count of the batch is complete after the sum over all shards; until then a sum is divided by the batch's
    samples.

    samples: of the whole batch. count: the counts of this shard's losses, added up.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Reset after a batch."""
        self.samples, self.count, self.is_counted = 1, torch.zeros(()), False

    def take(self, subject: str, value: Any, share: float) -> Tensor:
        """The loss of a part with this share of the samples. Raises TypeError."""
        pair = sum_and_count(subject, value)
        if pair is None:
            return one_mean(subject, value) * share
        total, count = pair
        self.is_counted = True
        self.count = self.count.to(total.device) + count.to(torch.float32)
        return total / self.samples

    def put_right(self, parameters: Iterable[nn.Parameter]) -> None:
        """Nothing to do: the batch does not end with a shard."""

    def refuse_rest(self) -> None:
        """Nothing to do: all ranks' parts are always complete."""


def _divide(total: Tensor, count: Tensor) -> Tensor:
    return total / count.clamp(min=1).to(total.dtype)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode in the block, and restore each module's mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def mean_of(states: Iterable[tuple[dict[str, Any], float]], names: Iterable[str]) -> dict[str, Any]:
    """The first state, with the means of all floating-point tensors in the named parts.

    Tensors are added in double precision, in order, each times its weight, and divided by the sum of the weights: with
    equal weights this is `sum(tensor.double() for tensor in tensors) / len(tensors)`, rounded to the tensor's dtype.
    Raises ValueError if shapes differ.
    """
    sums, first, weights = dict[tuple[str, str], Tensor](), dict[str, Any](), 0.0
    for state, weight in states:
        first, weights = first or state, weights + weight
        for part in (part for part in names if part in first):
            _refuse_others(first[part], state[part])
            for name, tensor in ((name, each) for name, each in state[part].items() if _has_mean(each)):
                share = tensor.to(torch.promote_types(tensor.dtype, torch.float64)) * weight
                sums[part, name] = sums[part, name].add_(share) if (part, name) in sums else share
    mean = {part: dict(first[part]) for part in names if part in first}
    for (part, name), total in sums.items():
        mean[part][name] = (total / weights).to(first[part][name].dtype)
    return {**first, **mean}


def _has_mean(value: Any) -> bool:
    if isinstance(value, Parted):
        raise ValueError("states that are divided among devices, by parallel: fsdp, cannot be averaged")
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _refuse_others(first: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Raises ValueError if two states differ in names or shapes."""
    shapes, others = ({name: getattr(each, "shape", ()) for name, each in part.items()} for part in (first, other))
    if odd := next((name for name in {**shapes, **others} if shapes.get(name) != others.get(name)), None):
        text = " and ".join("missing" if odd not in each else f"of shape {[*each[odd]]}" for each in (shapes, others))
        raise ValueError(f"models of different shapes have no mean: {odd} is {text}")


class Average:
    """An exponential moving average of a model's trainable parameters. Buffers are not averaged.

    decay: the weight of the old average in an update. Raises ValueError.
    is_new: it still equals the initial parameters.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"average_decay must be from 0 to less than 1, not {decay!r}")
        self._model, self._decay, self.is_new = model, decay, True
        self._values = {name: parameter.detach().clone() for name, parameter in self._parameters()}

    def restart(self) -> None:
        """Restart from the current parameters."""
        self.is_new = True
        for name, parameter in self._parameters():
            local(self._values[name]).copy_(local(parameter.detach()))

    def update(self) -> None:
        """Update from the current parameters."""
        self.is_new = False
        with torch.no_grad():
            for name, parameter in self._parameters():
                mine = local(self._values[name])
                mine.lerp_(local(parameter.detach()).to(mine.dtype), 1 - self._decay)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Swap the averages into the model in the block; nothing is copied."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self._values)

    def load_state_dict(self, state: Mapping[str, Tensor | Parted]) -> None:
        self.is_new = False
        for name, value in self._values.items():
            local(value).copy_(local(reshard_like(state[name], value)))

    def _swap(self) -> None:
        for name, parameter in self._parameters():
            if is_divided(parameter):  # torch keeps further references to its memory
                mine, other = local(parameter.detach()), local(self._values[name])
                copy = mine.clone()
                mine.copy_(other)
                other.copy_(copy)
            else:
                parameter.data, self._values[name] = self._values[name], parameter.data

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, each) for name, each in self._model.named_parameters() if each.requires_grad)


def export_model(model: nn.Module, folder: Path, average: Average | None) -> None:
    """Write a model, or its averages if there are any, into a folder: by `save_pretrained`, or as safetensors."""
    with average.swapped_in() if average else nullcontext():
        if hasattr(model, "save_pretrained"):
            model.save_pretrained(folder)  # type: ignore[operator]
        else:
            from safetensors.torch import save_model  # imported late: most trainers never export

            save_model(model, str(folder / "model.safetensors"))
