"""The reasons why a trainer cannot be packed, each a clause for the trainer's author."""

from __future__ import annotations

import torch
from torch import nn

from stagetree.packing.constants import (
    PACKED_METHODS,
    has_constants,
    is_composed,
    is_constant,
    is_opaque,
    opaque_modules,
)
from stagetree.trainer import Trainer
from stagetree.trainer.torch_trainer import TorchTrainer

VMAP_ERRORS = (
    (("control flow", ".item()"), "its loss asks a tensor for its value (`.item()`, `float(...)`, `if`)"),
    (("data-dependent shapes", "dynamic shape"), "in its loss the shape of a tensor depends on values"),
    (("inplace", "in-place"), "its loss writes into a tensor that all trials share"),
    (("random",), "its loss draws random numbers in a way that cannot be shared"),
    (("autograd.Function",), "its loss uses an autograd function of its own that has no `vmap`"),
)
"""Parts of torch's error messages under `vmap`, and the reason to report for them."""


OUT_OF_MEMORY_TEXT = "can't allocate memory"
"""Part of torch's RuntimeError when host memory is exhausted."""


class NotPackable(Exception):
    """The trainer is trained alone; the message is a clause that says why.

    is_own: the reason is the trainer itself, on any slot and with any other lanes.
    """

    def __init__(self, reason: str, is_own: bool = True) -> None:
        super().__init__(reason)
        self.is_own = is_own


def require_packable(trainer: Trainer) -> TorchTrainer:
    """The trainer, if its class and settings allow packing. Raises `NotPackable`."""
    if not isinstance(trainer, TorchTrainer):
        raise NotPackable("it is no TorchTrainer")
    for name in PACKED_METHODS:
        if getattr(type(trainer), name) is not getattr(TorchTrainer, name):
            raise NotPackable(f"it overrides `{name}`: see `clip_grad_norm`, `micro_batch_size` and `after_step`")
    if trainer._precision.is_scaled:
        raise NotPackable("precision fp16 scales its losses by what one model needs: bf16 can be packed")
    if trainer._sharding is not None:
        raise NotPackable("its batches are learned from in shards")
    if trainer._stream is not None:
        raise NotPackable("its data is a stream, in which each model has a place of its own")
    if trainer._compile:
        raise NotPackable("it is compiled")
    if not any(each.requires_grad for each in trainer.model.parameters()):
        raise NotPackable("nothing in its model learns")
    model = {id(each) for each in trainer.model.parameters()}
    if any(id(each) not in model for group in trainer.optimizer.param_groups for each in group["params"]):
        raise NotPackable("its optimizer has parameters that are not the model's")
    _refuse_weight_types(trainer)
    if any(isinstance(module, nn.RNNBase) for module in trainer.model.modules()):
        raise NotPackable("torch's recurrent layers train one model at a time")
    return trainer


def _refuse_weight_types(trainer: TorchTrainer) -> None:
    """Raises `NotPackable` for weights that have no row for each lane and may differ between lanes."""
    learning = next((each for each in trainer.model.parameters() if each.requires_grad and is_composed(each)), None)
    if learning is not None:
        raise NotPackable(f"its model learns weights of the kind {type(learning).__name__}, which are one model's")
    for module in opaque_modules(trainer.model).values():
        kind = next(type(each).__name__ for each in module.parameters(recurse=False) if is_opaque(each))
        if not has_constants(trainer):
            raise NotPackable(f"it has code of its own that may write into its weights of the kind {kind}")
        if not is_constant(module):
            raise NotPackable(f"its weights of the kind {kind} lie beside something that learns or changes")


def is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or OUT_OF_MEMORY_TEXT in str(error)


def explain_error(error: Exception) -> NotPackable:
    """Translate an error of a packed loss into a reason."""
    if isinstance(error, NotPackable):
        return error
    text = str(error)
    if is_out_of_memory(error):
        return NotPackable("there is too little memory for this many models at once: choose fewer lanes", is_own=False)
    for signs, sentence in VMAP_ERRORS:
        if any(sign in text for sign in signs):
            return NotPackable(sentence)
    return NotPackable(f"its loss does not work for several models at once: {type(error).__name__}: {text[:200]}")


def explain_late_error(error: Exception) -> NotPackable:
    """As `explain_error`, for a trainer that passed the checks."""
    return NotPackable(str(explain_error(error)), is_own=False)
