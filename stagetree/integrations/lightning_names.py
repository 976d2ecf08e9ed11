"""Each method of Lightning's base classes that an author may override: called here, harmless, or what to do instead."""

from __future__ import annotations

from typing import Any

from stagetree.integrations import hooks

PACKAGES = "lightning|pytorch_lightning"

HARMLESS = frozenset(
    {
        *("test_step", "predict_step", "test_dataloader", "predict_dataloader", "teardown", "on_exception", "print"),
        *("on_test_start", "on_test_end", "on_test_epoch_start", "on_test_epoch_end", "on_test_batch_start"),
        *("on_test_batch_end", "on_test_model_eval", "on_test_model_train", "on_predict_start", "on_predict_end"),
        *("on_predict_epoch_start", "on_predict_epoch_end", "on_predict_batch_start", "on_predict_batch_end"),
        *("on_predict_model_eval", "example_input_array", "to_onnx", "to_torchscript", "to_tensorrt", "freeze"),
        *("load_from_checkpoint", "hparams", "hparams_initial", "save_hyperparameters", "strict_loading", "name"),
        *("from_datasets", "unfreeze", "to", "cuda", "cpu", "type", "float", "double", "half", "device", "dtype"),
        *("CHECKPOINT_HYPER_PARAMS_KEY", "CHECKPOINT_HYPER_PARAMS_NAME", "CHECKPOINT_HYPER_PARAMS_TYPE", "forward"),
    }
)
"""Not called by training or validation in Lightning either, or called by whoever calls the module itself."""

CALLED = frozenset(
    {
        *("training_step", "validation_step", "configure_optimizers", "automatic_optimization", "configure_model"),
        *("on_train_epoch_start", "on_train_epoch_end", "on_validation_start", "on_validation_epoch_start"),
        *("on_validation_epoch_end", "on_validation_end", "on_after_batch_transfer", "prepare_data", "setup"),
        *("train_dataloader", "val_dataloader"),
    }
)

CALLED_OF_DATA = frozenset(
    {"prepare_data", "setup", "train_dataloader", "val_dataloader", "on_after_batch_transfer"},
)

_BATCH = "do the same with an argument such as clip_grad_norm, in `after_step`, or in a `train_batch` of your trainer"
_STATE = "register what is to be kept as a buffer of the module"
_ONCE = "do it in `__init__` of the module, since a trial may begin in the middle"
_NEVER = "do it after the study, since a trial may be continued at any time"
_MOVED = "do it in the loader's `collate_fn`, or in `on_after_batch_transfer`"
_RATE = "give the study's `lr` a sequence"

INSTEAD = {
    "lr_scheduler_step": _RATE,
    **dict.fromkeys(("on_train_start", "on_fit_start"), _ONCE),
    **dict.fromkeys(("on_train_end", "on_fit_end"), _NEVER),
    **dict.fromkeys(("transfer_batch_to_device", "on_before_batch_transfer"), _MOVED),
    **dict.fromkeys(("on_save_checkpoint", "on_load_checkpoint", "state_dict", "load_state_dict"), _STATE),
    "configure_callbacks": "see docs/trainers.md for each callback's place",
    "configure_sharded_model": "use `configure_model`",
    **dict.fromkeys(
        ("on_validation_batch_start", "on_validation_batch_end"), "do it at the beginning or end of `validation_step`"
    ),
    **dict.fromkeys(
        ("on_validation_model_eval", "on_validation_model_train", "on_validation_model_zero_grad"),
        "modules are put in evaluation mode, and back in their own afterwards",
    ),
    **dict.fromkeys(("log", "log_dict"), "call the inherited one where a number is to be logged"),
    **dict.fromkeys(("current_epoch", "global_step", "trainer"), "give what you mean another name"),
}
"""What to do where a method is not called; of all others, the batch's."""


def instead_of(name: str) -> str:
    return INSTEAD.get(name, _BATCH)


def refuse_own_loop(module: Any) -> None:
    """What a module does itself around its optimizer would be left out without a word."""
    base = base_of(module, "LightningModule")
    if not module.automatic_optimization:
        raise ValueError(
            f"{type(module).__name__} has automatic_optimization = False and trains by itself: write a Trainer"
        )
    refuse(module, base, CALLED)


def refuse(thing: Any, base: type, called: frozenset[str]) -> None:
    """A method that only Lightning's own loop calls is refused by its name. Raises ValueError."""
    own = hooks.overridden(thing, base, PACKAGES, called | HARMLESS)
    if own:
        names = ", ".join(own)
        verb = "is" if len(own) == 1 else "are"
        raise ValueError(
            f"{type(thing).__name__}.{names} {verb} not called here: leave it out, and {instead_of(own[0])}"
        )


def refuse_steps_here(kind: type) -> None:
    """A method of the module's that was written into the trainer would never be called."""
    names = ("training_step", "validation_step", "configure_optimizers", "on_train_epoch_start", "on_train_epoch_end")
    own = [name for name in names if hasattr(kind, name)]
    if own:
        raise ValueError(f"{kind.__name__}.{own[0]} is not called here: it belongs into the LightningModule")


def base_of(thing: Any, name: str) -> type:
    """The class of Lightning's that an object's own is made from. Raises ValueError."""
    base = next((each for each in type(thing).__mro__ if each.__name__ == name), None)
    if base is None:
        raise ValueError(f"{type(thing).__name__} is no {name}: give one of lightning's")
    return base
