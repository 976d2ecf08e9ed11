"""Where two states differ first, and what in a trainer is likely to be the cause."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from stagetree.runtime import inexact
from stagetree.runtime.pickles import say_the_same
from stagetree.training.reading import is_ours

Leaves = dict[str, Any]


def leaves(value: Any, path: str = "") -> Leaves:
    """The tensors and values of a state, by their places, as they come."""
    return dict(_walk(value, path))


def first_difference(one: Leaves, other: Leaves) -> str:
    """The first leaf that is not equal to the bit, and of how many leaves how many are not; nothing if all are."""
    names = list(dict.fromkeys([*one, *other]))
    wrong = [name for name in names if name not in one or name not in other or not _same(one[name], other[name])]
    if not wrong:
        return ""
    name = next((each for each in wrong if not each.startswith("generators")), wrong[0])
    count = f"{len(wrong)} of {len(names)} leaves differ"
    return f"{count}, the first is {name}{_by_how_much(one.get(name), other.get(name))}"


def modes(trainer: object) -> dict[str, bool]:
    """Which of a trainer's modules are in training mode, by attribute and name."""
    roots = {name: value for name, value in vars(trainer).items() if isinstance(value, nn.Module)}
    return {
        ".".join(filter(None, (root, name))): module.training
        for root, value in roots.items()
        for name, module in value.named_modules()
    }


def changed_modes(before: Mapping[str, bool], after: Mapping[str, bool]) -> dict[str, str]:
    """The modules that are trained in another mode than before, and in which."""
    words = {True: "training", False: "evaluation"}
    return {name: words[after[name]] for name in before if name in after and after[name] != before[name]}


def loaders() -> list[str]:
    """The data sets of a user's DataLoaders whose workers outlive an epoch."""
    found = []
    for each in gc.get_objects():
        if issubclass(type(each), DataLoader) and each.persistent_workers and each.num_workers and not is_ours(each):
            found.append(type(each.dataset).__name__)
    return found


def restore_modes(trainer: object, before: Mapping[str, bool]) -> None:
    """Put a trainer's modules back in the modes that `modes` returned."""
    for root, value in vars(trainer).items():
        if isinstance(value, nn.Module):
            for name, module in value.named_modules():
                module.training = before.get(".".join(filter(None, (root, name))), module.training)


def cause(way: str, is_unrepeatable: bool, first: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """The likeliest reason that a way differs, in a sentence. first: what was seen before the break.

    found: of the way; `modes_matter` says whether the difference went away once modes were put back, if that was tried.
    attributes: a hash of each, in `first` and in what was `found`; or, of what was found, the `stray` ones among them.
    Where several reasons could not be told apart, all are named as possible.
    """
    possible = []
    if found.get("modes") and found.get("modes_matter") is not False:
        name, mode = next(iter(found["modes"].items()))
        sentence = f"evaluate() leaves self.{name} in {mode} mode; end it with train()"
        if found.get("modes_matter"):
            return f"Likely: {sentence}"
        possible.append(sentence)
    if found.get("loaders"):
        possible.append(
            f"persistent loader workers ({', '.join(found['loaders'])}): what they draw depends on how long "
            "they have lived; use persistent_workers=False, or give TorchTrainer the data set and num_workers"
        )
    if len(possible) > 1:
        return f"Possible: {'; or '.join(possible)}"
    if possible:
        return f"Likely: {possible[0]}"
    if way == "again" or is_unrepeatable:
        return inexact.UNREPEATABLE
    before, now = first.get("attributes", {}), found.get("attributes", {})
    stray = found.get("stray") or [name for name in before if name in now and now[name] != before[name]]
    if stray:
        return inexact.not_in_state(stray)
    return inexact.WATCHED if way == "watched" else inexact.LOST


def cause_of_metrics(first: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """The same of a metric that differs where no leaf does. `again`, of what was found: whether it did when it was
    measured once more.
    """
    before, now = first["attributes"], found.get("attributes", {})
    stray = (name for name in before if name in now and now[name] != before[name])
    return inexact.of_metrics(inexact.MEASURING if found["again"] else "", stray)


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple) and len(value) < 100:  # longer ones are one leaf: a generator's numbers
        for number, item in enumerate(value):
            yield from _walk(item, f"{path}[{number}]")
    else:
        yield path, value


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and _bits(one).equal(_bits(other))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return [*one] == [*other] and all(map(_same, one.values(), other.values()))
    if isinstance(one, bytes):
        return one == other or say_the_same(one, other)
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    return bool(one == other or (one != one and other != other))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def _by_how_much(one: Any, other: Any) -> str:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape:
            return f" (shapes {tuple(one.shape)} and {tuple(other.shape)})"
        if one.is_floating_point() and one.numel():
            return f" (by up to {(one.double() - other.double()).abs().max().item():.2g})"
        return ""
    if isinstance(one, bytes) and isinstance(other, bytes):
        return f" ({len(one)} and {len(other)} bytes; pickles of equal objects may differ, arrays and numbers do not)"
    scalars = (int, float, str, bool, type(None))
    return f" ({one!r} and {other!r})" if isinstance(one, scalars) and isinstance(other, scalars) else ""
