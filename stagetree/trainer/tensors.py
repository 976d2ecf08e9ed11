"""Nests of tensors, means over parts of a batch, a model's modes, and running averages of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stagetree.trainer.divided_tensors import Parted, is_divided, like, local

Mean = Tensor | tuple[Tensor, Tensor | int]
"""A mean in one number, or as the sum and the count that make it."""


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """A whole number that is large enough; 32.0 is one. Raises ValueError."""
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


def shortened(batch: Any, length: int) -> Any:
    """The first positions of each sample: of each tensor (B, T, ...), T. Raises ValueError where there are fewer."""
    there: list[int] = []
    map_tensors(batch, lambda tensor: there.extend(tensor.shape[1:2]))
    if length > max(there, default=0):
        raise ValueError(f"seq_len must be at most the positions of a sample, {max(there, default=0)}, not {length}")
    return map_tensors(batch, lambda tensor: tensor[:, :length] if tensor.dim() > 1 else tensor)


def first_tensor(value: Any) -> Tensor | None:
    """The first of a nest's tensors, if there is one."""
    if isinstance(value, Tensor):
        return value
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return next((tensor for item in items if (tensor := first_tensor(item)) is not None), None)


def owned(state: Any, device: str) -> Any:
    """The state of an optimizer, with copies where it would else go on working in the tensors that it is given."""
    return map_tensors(state, lambda tensor: tensor.clone() if device == "cpu" or tensor.dim() == 0 else tensor)


def one_number(subject: str, value: Any) -> Tensor:
    """A tensor that holds one number, without dimensions. Raises TypeError."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = f"one of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise TypeError(f"{subject} must be a tensor that holds one number, got {got}")
    return value.reshape(())


def sum_and_count(subject: str, value: Any) -> tuple[Tensor, Tensor] | None:
    """The two tensors of a mean that is given as (sum, count); None for a mean in one number. Raises TypeError."""
    if not isinstance(value, tuple | list):
        return None
    if len(value) != 2:
        raise TypeError(f"{subject} must be a mean, or (sum, count), got {len(value)} values")
    total = one_number(f"the sum of {subject}", value[0])
    count = one_number(f"the count of {subject}", torch.as_tensor(value[1], device=total.device))
    return total, count.detach().to(torch.float64 if total.device.type == "cpu" else torch.float32)


def one_mean(subject: str, value: Any) -> Tensor:
    """A mean, or (sum, count), as one number without dimensions; of a count of 0 it is the sum. Raises TypeError."""
    pair = sum_and_count(subject, value)
    return one_number(subject, value) if pair is None else _divided(*pair)


class PartMeans:
    """Makes the gradients of a batch's parts add up to that of the mean over all the whole batch counts.

    How much the whole counts is known after its last part. So parts are divided by an estimate, which keeps losses
    near the mean for scaled half precision, and what has added up is put right in the end.
    """

    _shares: float

    def __init__(self) -> None:
        self._forget()

    def take(self, subject: str, value: Any, share: float) -> Tensor:
        """What to learn from in a part with this share of the samples. Raises TypeError."""
        pair = sum_and_count(subject, value)
        if pair is None or share == 1.0:
            mean = one_mean(subject, value)
            return mean if share == 1.0 else mean * share
        total, count = pair
        if self._shares == 0.0:
            self._estimate, self._count = count.clamp(min=1) / share, torch.zeros_like(count)
        self._shares, self._count = self._shares + share, self._count + count
        return _divided(total, self._estimate)

    def put_right(self, parameters: Iterable[nn.Parameter]) -> None:
        """Once the last part of a batch has added its gradient, divide by what the whole batch counts."""
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
        """Raises ValueError where parts of a batch are missing."""
        if self._shares:
            raise ValueError(
                f"the loss is (sum, count), and the shares given to `accumulate` add up to {self._shares:.3g}: "
                "give the parts of one batch shares that add up to 1"
            )


class ShardMeans:
    """Makes the losses of shards add up to the mean over the whole batch, in the place of `PartMeans`.

    How much the batch counts is known when all is added up; until then a sum is divided by the samples of the batch.

    samples: of the whole batch. count: how much the losses of this shard counted so far.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """The batch is over."""
        self.samples, self.count, self.is_counted = 1, torch.zeros(()), False

    def take(self, subject: str, value: Any, share: float) -> Tensor:
        """The loss to learn from, in a part with this share of the samples. Raises TypeError."""
        pair = sum_and_count(subject, value)
        if pair is None:
            return one_mean(subject, value) * share
        total, count = pair
        self.is_counted = True
        self.count = self.count.to(total.device) + count.to(torch.float32)
        return total / self.samples

    def put_right(self, parameters: Iterable[nn.Parameter]) -> None:
        """Nothing: the batch is not over with a shard."""

    def refuse_rest(self) -> None:
        """Nothing is ever missing: all ranks have come together."""


def _divided(total: Tensor, count: Tensor) -> Tensor:
    return total / count.clamp(min=1).to(total.dtype)


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


def mean_of(states: Iterable[tuple[dict[str, Any], float]], names: Iterable[str]) -> dict[str, Any]:
    """The first of some states, with the means of all floating tensors in these of its parts.

    They are added up in double precision, in order, each times its weight, and divided by the sum of the weights: for
    equal weights, that is `sum(tensor.double() for tensor in tensors) / len(tensors)`, rounded to the tensor's type.
    Raises ValueError where they are not of one shape.
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
    """Raises ValueError where two states are not of the same names and shapes."""
    shapes, others = ({name: getattr(each, "shape", ()) for name, each in part.items()} for part in (first, other))
    if odd := next((name for name in {**shapes, **others} if shapes.get(name) != others.get(name)), None):
        text = " and ".join("missing" if odd not in each else f"of shape {[*each[odd]]}" for each in (shapes, others))
        raise ValueError(f"models of different shapes have no mean: {odd} is {text}")


class Average:
    """An exponential moving average of a model's trainable parameters; its buffers are the model's own.

    decay: what is left of the average after each update. Raises ValueError.
    is_new: whether it has not moved yet, and no state was loaded: it is the parameters that training begins with.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"average_decay must be from 0 to less than 1, not {decay!r}")
        self._model, self._decay, self.is_new = model, decay, True
        self._values = {name: parameter.detach().clone() for name, parameter in self._parameters()}

    def restart(self) -> None:
        """Begin anew at the parameters as they are now."""
        self.is_new = True
        for name, parameter in self._parameters():
            local(self._values[name]).copy_(local(parameter.detach()))

    def update(self) -> None:
        """Move towards the parameters as they are now."""
        self.is_new = False
        with torch.no_grad():
            for name, parameter in self._parameters():
                mine = local(self._values[name])
                mine.lerp_(local(parameter.detach()).to(mine.dtype), 1 - self._decay)

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

    def load_state_dict(self, state: Mapping[str, Tensor | Parted]) -> None:
        self.is_new = False
        for name, value in self._values.items():
            local(value).copy_(local(like(state[name], value)))

    def _swap(self) -> None:
        for name, parameter in self._parameters():
            if is_divided(parameter):  # torch has it in other places, too
                mine, other = local(parameter.detach()), local(self._values[name])
                copy = mine.clone()
                mine.copy_(other)
                other.copy_(copy)
            else:
                parameter.data, self._values[name] = self._values[name], parameter.data

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, each) for name, each in self._model.named_parameters() if each.requires_grad)


def export_model(model: nn.Module, folder: Path, average: Average | None) -> None:
    """Write a model, with its averages if there are any, into a folder: as its own library would, or as safetensors."""
    with average.in_place() if average else nullcontext():
        if hasattr(model, "save_pretrained"):
            model.save_pretrained(folder)  # type: ignore[operator]
        else:
            from safetensors.torch import save_model  # most trainers never export

            save_model(model, str(folder / "model.safetensors"))
