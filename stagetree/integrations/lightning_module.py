"""A LightningModule without Lightning's Trainer: which overridden methods are called, and stand-ins for the Trainer.

Each method of Lightning's base classes that an author may override is either called here, harmless, or refused with
what to do instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import nn

Plain = bool | int | float | str | None


def overridden_names(thing: Any, base: type, allowed: Collection[str]) -> list[str]:
    """The public names of `base` that an object or its class overrides, except those in `allowed`.

    What `base` inherits from other packages than Lightning's, such as torch, is called as usual.
    """
    kind = thing if isinstance(thing, type) else type(thing)
    bases = [each for each in base.__mro__ if each.__module__.split(".")[0] in PACKAGES]
    names = [name for each in bases for name in vars(each) if not name.startswith("_")]
    mine = () if isinstance(thing, type) else vars(thing)
    own = {
        name for name in names if name in mine or _function(getattr(kind, name)) is not _function(getattr(base, name))
    }
    return sorted(own - set(allowed))


def _function(method: Any) -> Any:
    """The function of a bound method, since each access makes another method object."""
    return getattr(method, "__func__", method)


def attributes(model: nn.Module, without: tuple[type, ...] = ()) -> dict[str, dict[str, Plain]]:
    """The plain values that the modules of a model have as attributes, by module.

    Hooks change these, and no `state_dict` has them: the rate of a dropout, a counter, a temperature.
    """
    by_module = {name: _plain(module) for name, module in _modules(model, without)}
    return {name: values for name, values in by_module.items() if values}


def restore_attributes(
    model: nn.Module, by_module: Mapping[str, Mapping[str, Plain]], without: tuple[type, ...]
) -> None:
    """Restore attributes that `attributes` returned, and delete all others of this kind."""
    for name, module in _modules(model, without):
        values = by_module.get(name, {})
        for each in _plain(module).keys() - values.keys():
            delattr(module, each)
        for each, value in values.items():
            if vars(module).get(each, model) != value:
                setattr(module, each, value)


def frozen_names(model: nn.Module) -> list[str]:
    """The frozen parameters."""
    return [name for name, each in model.named_parameters() if not each.requires_grad]


def freeze(model: nn.Module, names: Collection[str]) -> None:
    """Freeze exactly these parameters."""
    for name, each in model.named_parameters():
        if each.requires_grad is (name in names):
            each.requires_grad_(name not in names)


def _modules(model: nn.Module, without: tuple[type, ...]) -> Iterator[tuple[str, nn.Module]]:
    return ((name, module) for name, module in model.named_modules() if not isinstance(module, without))


def _plain(module: nn.Module) -> dict[str, Plain]:
    skipped = _TORCHS - {"training"}
    return {
        name: value
        for name, value in vars(module).items()
        if name not in skipped and (value is None or type(value) in (bool, int, float, str))
    }


_TORCHS = vars(nn.Module()).keys() | {
    *("_compiled_call_impl", "_trainer", "_fabric", "_current_fx_name", "_jit_is_scripting", "_compiler_ctx"),
    *("_metric_attributes", "_device_mesh", "_log_hyperparams", "_automatic_optimization", "_strict_loading"),
    "_example_input_array",
}
"""Attributes of torch and Lightning themselves."""


PACKAGES = ("lightning", "pytorch_lightning")

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
"""Methods that training and validation in Lightning do not call either, or only the module's own code."""

CALLED = frozenset(
    {
        *("training_step", "validation_step", "configure_optimizers", "automatic_optimization", "configure_model"),
        *("on_train_epoch_start", "on_train_epoch_end", "on_validation_start", "on_validation_epoch_start"),
        *("on_validation_epoch_end", "on_validation_end", "on_after_batch_transfer", "prepare_data", "setup"),
        *("train_dataloader", "val_dataloader"),
    }
)

DATA_METHODS = frozenset({"prepare_data", "setup", "train_dataloader", "val_dataloader", "on_after_batch_transfer"})

_BATCH = "do the same with an argument such as clip_grad_norm, in `after_step`, or in a `train_batch` of your trainer"
_STATE = "register the value as a buffer of the module"
_ONCE = "do it in `__init__` of the module, since a trial may resume at a later step"
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
"""What to do instead of a method that is not called; otherwise `_BATCH`."""


def refuse_own_loop(module: Any) -> None:
    """Refuse a module with an optimization loop of its own, which would be ignored."""
    base = base_of(module, "LightningModule")
    if not module.automatic_optimization:
        raise ValueError(
            f"{type(module).__name__} has automatic_optimization = False and trains by itself: write a Trainer"
        )
    refuse(module, base, CALLED)


def refuse(thing: Any, base: type, called: frozenset[str]) -> None:
    """Raises ValueError for methods that only Lightning's own loop calls, by name."""
    own = overridden_names(thing, base, called | HARMLESS)
    if own:
        names = ", ".join(own)
        verb = "is" if len(own) == 1 else "are"
        raise ValueError(
            f"{type(thing).__name__}.{names} {verb} not called here: leave it out, and {INSTEAD.get(own[0], _BATCH)}"
        )


def refuse_steps_here(kind: type) -> None:
    """Refuse methods of a module written into the trainer, where they would never be called."""
    names = ("training_step", "validation_step", "configure_optimizers", "on_train_epoch_start", "on_train_epoch_end")
    own = [name for name in names if hasattr(kind, name)]
    if own:
        raise ValueError(f"{kind.__name__}.{own[0]} is not called here: it belongs into the LightningModule")


def base_of(thing: Any, name: str) -> type:
    """The Lightning base class of an object. Raises ValueError."""
    base = next((each for each in type(thing).__mro__ if each.__name__ == name), None)
    if base is None:
        raise ValueError(f"{type(thing).__name__} is no {name}: give one of lightning's")
    return base


COUNTERS = ("current_epoch", "global_step", "batch_idx", "is_within_epoch")


class TrainerStandIn:
    """Stands in for a module's Trainer of Lightning, with the attributes that are true of our loop."""

    def __init__(self) -> None:
        self.current_epoch, self.global_step, self.batch_idx = 0, 0, 0
        self.is_within_epoch = False
        self.training, self.validating, self.sanity_checking = True, False, False
        self.is_global_zero, self.world_size, self.global_rank, self.local_rank = True, 1, 0, 0
        self.logger, self.progress_bar_callback = None, None
        self.loggers: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"there is no Trainer of Lightning's here, whose `{name}` the module asks for")


class LogCapture:
    """Captures what a module logs, which would otherwise need a Trainer of Lightning.

    values: numbers by name. metrics: of torchmetrics. means: the numbers, weighted with the batch size if the module
    gives one.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self.values, self.metrics, self.means = dict[str, Any](), dict[str, Any](), dict[str, Any]()

    def __enter__(self) -> LogCapture:
        self._module.__dict__["log"] = self._log
        self._module.__dict__["log_dict"] = self._log_dict
        return self

    def __exit__(self, *_: object) -> None:
        for name in ("log", "log_dict"):
            del self._module.__dict__[name]

    def _log(self, name: str, value: Any, *_: Any, **how: Any) -> None:
        if how.get("reduce_fx", "mean") not in ("mean", torch.mean):
            raise ValueError(f"{name} is logged with reduce_fx, and only means are taken: log a metric of torchmetrics")
        if hasattr(value, "compute") and hasattr(value, "reset"):
            self.metrics[name] = value
            return
        size = how.get("batch_size")
        self.values[name] = value
        self.means[name] = value if size is None else (torch.as_tensor(value) * size, size)

    def _log_dict(self, values: Mapping[str, Any], *_: Any, **how: Any) -> None:
        for name, value in values.items():
            self._log(name, value, **how)
