"""What does not learn: held once for all lanes of a pack that have the same.

A quantised weight is a parameter of another kind: its numbers are in tensors that it holds (torchao's), or that lie
beside it (bitsandbytes'). Which they are, its module knows, which saves them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from stagetree.trainer import Trainer
from stagetree.trainer.torch_trainer import TorchTrainer

OURS = ("train", "train_batch", "accumulate", "_train_in_parts")
"""Methods of `TorchTrainer` in whose place a pack does its own."""

WRITES = ("setup", "apply", "update", "after_step")
"""Methods of `TorchTrainer` in which a trainer's own code may change what no gradient changes."""

WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Kinds of whole numbers, by their bytes."""

PLAIN: tuple[type[Tensor], ...] = (Tensor, nn.Parameter)


def has_constants(trainer: Trainer) -> bool:
    """Whether parameters that do not learn stay as they are: it has no code of its own that may write into them."""
    if not isinstance(trainer, TorchTrainer):
        return False
    return all(getattr(type(trainer), name) is getattr(TorchTrainer, name) for name in (*OURS, *WRITES))


def is_opaque(parameter: Tensor) -> bool:
    """Whether it does not learn, and its numbers are not just its own."""
    return not parameter.requires_grad and (type(parameter) not in PLAIN or is_composed(parameter))


def is_composed(tensor: Tensor) -> bool:
    """Whether its numbers are in other tensors, which it holds."""
    return hasattr(tensor, "__tensor_flatten__")


def opaque_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Those with weights of their own that are opaque, by name."""
    return {name: each for name, each in model.named_modules() if any(map(is_opaque, each.parameters(recurse=False)))}


def is_constant(module: nn.Module) -> bool:
    """Whether there is nothing in it that learns or changes, nor another module."""
    return not [
        *module.children(),
        *module.buffers(),
        *(each for each in module.parameters() if each.requires_grad),
    ]


def constants_of(model: nn.Module) -> dict[str, Tensor]:
    """Tensors that do not learn, by name: parameters, and what constant modules with opaque ones save."""
    named: dict[str, Tensor] = {
        name: each for name, each in model.named_parameters() if not (each.requires_grad or is_opaque(each))
    }
    for prefix, module in opaque_modules(model).items():
        saved = module.state_dict(prefix=f"{prefix}.", keep_vars=True) if is_constant(module) else {}
        for name, each in saved.items():
            named.update(_parts(name, each))
    return named


def is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers, to the bit."""
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    return (one.data_ptr(), one.stride()) == (other.data_ptr(), other.stride()) or _bits(one).equal(_bits(other))


def share_constants(trainer: Trainer, others: Iterable[Trainer]) -> None:
    """Have what does not learn in it in the memory of another's, where it is the same there.

    Nothing writes there from here on, unless it is its own again, by `own_constants`.
    """
    if has_constants(trainer) and (mine := _model(trainer)) is not None:
        held = [constants_of(each) for other in others if has_constants(other) and (each := _model(other)) is not None]
        for name, still in constants_of(mine).items():
            same = (each[name] for each in held if name in each and is_same(each[name].data, still.data))
            still.data = next(same, still).data


def own_constants(trainer: Trainer) -> None:
    """Have in its own memory again what does not learn, as before it is loaded anew."""
    if has_constants(trainer) and (model := _model(trainer)) is not None:
        for each in constants_of(model).values():
            each.data = each.data.clone()


def _model(trainer: Trainer) -> nn.Module | None:
    """Of a trainer that has built it."""
    return getattr(trainer, "model", None)


def _parts(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The plain tensors in which its numbers are."""
    if not is_composed(tensor):
        yield name, tensor
        return
    for inner in tensor.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
        yield from _parts(f"{name}.{inner}", getattr(tensor, inner))


def _bits(tensor: Tensor) -> Tensor:
    """As whole numbers, so that a NaN is what it is."""
    whole = WHOLE.get(tensor.element_size())
    return tensor.detach() if whole is None else tensor.detach().view(whole)
