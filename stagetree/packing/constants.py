"""Frozen parameters and other constants, stored once for all lanes of a pack in which they are equal.

A quantized weight is a tensor subclass: its numbers are in inner tensors (torchao) or beside it (bitsandbytes). The
module's `state_dict` shows where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from stagetree.trainer import Trainer
from stagetree.trainer.torch_trainer import TorchTrainer

PACKED_METHODS = ("train", "train_batch", "accumulate", "_train_in_parts")
"""Methods of `TorchTrainer` that a pack replaces."""

PARAMETER_HOOKS = ("setup", "apply", "update", "after_step")
"""Methods of `TorchTrainer` in which a trainer's own code may write into frozen parameters."""

PLAIN_TYPES: tuple[type[Tensor], ...] = (Tensor, nn.Parameter)


def has_constants(trainer: Trainer) -> bool:
    """Whether frozen parameters stay constant: the trainer has no code of its own that may write into them."""
    names = (*PACKED_METHODS, *PARAMETER_HOOKS)
    is_torchs = isinstance(trainer, TorchTrainer)
    return is_torchs and all(getattr(type(trainer), name) is getattr(TorchTrainer, name) for name in names)


def is_opaque(parameter: Tensor) -> bool:
    """Whether a parameter is frozen and its numbers are not only in itself."""
    return not parameter.requires_grad and (type(parameter) not in PLAIN_TYPES or is_composed(parameter))


def is_composed(tensor: Tensor) -> bool:
    """Whether the tensor's numbers are in inner tensors."""
    return hasattr(tensor, "__tensor_flatten__")


def opaque_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that own opaque weights, by name."""
    return {name: each for name, each in model.named_modules() if any(map(is_opaque, each.parameters(recurse=False)))}


def is_constant(module: nn.Module) -> bool:
    """Whether nothing in the module learns or changes, and it has no child."""
    learning = (each for each in module.parameters() if each.requires_grad)
    return not [*module.children(), *module.buffers(), *learning]


def find_constants(model: nn.Module) -> dict[str, Tensor]:
    """The constant tensors by name: frozen parameters, and the saved tensors of constant modules with opaque
    weights."""
    named: dict[str, Tensor] = {
        name: each for name, each in model.named_parameters() if not (each.requires_grad or is_opaque(each))
    }
    for prefix, module in opaque_modules(model).items():
        saved = module.state_dict(prefix=f"{prefix}.", keep_vars=True) if is_constant(module) else {}
        for name, each in saved.items():
            named.update(_parts(name, each))
    return named


def is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers, bit for bit."""
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    return (one.data_ptr(), one.stride()) == (other.data_ptr(), other.stride()) or bits(one).equal(bits(other))


def share_constants(trainer: Trainer, others: Iterable[Trainer]) -> None:
    """Let the trainer's constants use the memory of equal ones in `others`.

    Nothing may write into them until `own_constants` is called.
    """
    if has_constants(trainer) and (mine := _model(trainer)) is not None:
        models = [_model(other) for other in others if has_constants(other)]
        held = [find_constants(each) for each in models if each is not None]
        for name, still in find_constants(mine).items():
            same = (each[name] for each in held if name in each and is_same(each[name].data, still.data))
            still.data = next(same, still).data


def own_constants(trainer: Trainer) -> None:
    """Give the trainer's constants memory of their own again, for example before a state is loaded."""
    if has_constants(trainer) and (model := _model(trainer)) is not None:
        for each in find_constants(model).values():
            each.data = each.data.clone()


def _model(trainer: Trainer) -> nn.Module | None:
    """The model; None before it is built."""
    return getattr(trainer, "model", None)


def _parts(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The plain tensors that hold the tensor's numbers."""
    if not is_composed(tensor):
        yield name, tensor
        return
    for inner in tensor.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
        yield from _parts(f"{name}.{inner}", getattr(tensor, inner))


def bits(tensor: Tensor) -> Tensor:
    """The bytes of the numbers, so that NaNs compare by their bits."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)
