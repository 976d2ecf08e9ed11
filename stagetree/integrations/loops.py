"""`Trainer` of Transformers and TRL, with their own loop, as trainers of studies.

run = stagetree.attach("sft", ...)
trainer = SFTTrainer(model, args=SFTConfig(...), train_dataset=..., callbacks=[...])
stagetree.integrations.loops.transformers(run, trainer)
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stagetree.functions import Run
from stagetree.integrations.framework_loop import (
    Apply,
    FrameworkLoop,
    Hp,
    RateGroups,
    group_names,
    refuse_name,
    refuse_schedule,
    refuse_stopping,
)


def transformers(run: Run, trainer: Any, apply: Apply | None = None) -> None:
    """Train by a `Trainer` of Transformers or TRL as its user has made it, with callbacks and arguments.

    A step is an update of the weights. `lr` or `learning_rate`, and other values of the optimizer's groups such as
    `weight_decay`, come from the study; each group keeps its multiple of the arguments' own. The study evaluates by
    `trainer.evaluate()`, and logs what the trainer logs; `eval_strategy`, `save_strategy` and `max_steps` have no
    effect. With adapters of PEFT, the state has the trained weights only.

    apply: applies all other hyper-parameters before each step.

    Raises ValueError for what a study decides: an early-stopping callback, the best model at the end, and a schedule of
    the trainer's own if the study has no learning rate.
    """
    _Transformers(run, trainer, apply).train()


NOISE = ("runtime", "per_second", "epoch", "num_tokens", "preparation_time")
"""Endings of names that a `Trainer` returns besides its metrics: times, and counts of this process."""

ENDLESS = 2**31 - 1
"""Steps: the study decides when a trial ends."""


class _Transformers(FrameworkLoop):
    name = "the Trainer"

    def __init__(self, run: Run, trainer: Any, apply: Apply | None) -> None:
        super().__init__(run, apply)
        self._trainer, self._is_evaluating, args = trainer, False, trainer.args
        refuse_stopping(trainer.callback_handler.callbacks, "EarlyStoppingCallback")
        if args.load_best_model_at_end:
            raise ValueError("load_best_model_at_end: the study keeps the weights of its best results")
        self._schedule = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
        if trainer.lr_scheduler is not None:
            self._schedule = type(trainer.lr_scheduler).__name__
        args.save_strategy, args.eval_strategy = type(args.save_strategy)("no"), type(args.eval_strategy)("no")
        args.max_steps = ENDLESS
        self._groups: RateGroups | None = None
        trainer._load_from_checkpoint = lambda *_, **__: None  # `load` has done it
        trainer.callback_handler.callbacks.insert(0, _callback(self))

    def fit(self, folder: Path, state: Any) -> None:
        trainer, resume = self._trainer, {}
        if state is not None:
            place = copy.copy(trainer.state)
            place.log_history, place.stateful_callbacks = [], {}
            for name, value in state["place"].items():
                setattr(place, name, value)
            place.save_to_json(os.fspath(folder / "trainer_state.json"))
            resume = {"resume_from_checkpoint": os.fspath(folder)}
        try:
            trainer.train(**resume)
        finally:
            hook = getattr(trainer, "neftune_hook_handle", None)
            if hook is not None:  # `train` adds one each time, and removes it only at its regular end
                hook.remove()

    def begin_step(self) -> None:
        args = self._trainer.args
        if self._groups is None:
            own = {"lr": args.learning_rate, "weight_decay": args.weight_decay}
            self._groups = RateGroups(self._trainer.optimizer, own)
        super().begin_step()

    def apply(self, hp: Hp) -> None:
        trainer, groups = self._trainer, self._groups
        assert groups is not None
        values = group_names(hp)
        if "lr" not in values and self._schedule != "constant":
            instead = 'give the study `lr` as a sequence, or the arguments lr_scheduler_type="constant"'
            refuse_schedule(self._schedule, instead)
        trainer.lr_scheduler = _StudyRate(trainer.optimizer)
        for name, value in values.items():
            if name in groups.names:
                groups.set(trainer.optimizer, name, value)
            elif self._apply is None:
                refuse_name(name, f"the optimizer has {', '.join(groups.names)}")

    def save(self) -> Any:
        trainer = self._trainer
        place = {name: getattr(trainer.state, name) for name in ("global_step", "num_input_tokens_seen")}
        scaler = trainer.accelerator.scaler
        return {
            "model": self._trained_weights(),
            "optimizer": trainer.optimizer.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
            "place": place,
        }

    def load(self, state: Any) -> None:
        trainer = self._trainer
        own = trainer.model.state_dict()
        for name, tensor in state["model"].items():
            own[name].copy_(tensor)
        trainer.optimizer.load_state_dict(state["optimizer"])
        if trainer.accelerator.scaler is not None:
            trainer.accelerator.scaler.load_state_dict(state["scaler"])

    def _trained_weights(self) -> dict[str, Any]:
        """All weights and buffers by name; with PEFT, without the frozen weights."""
        model = self._trainer.model
        state: dict[str, Any] = model.state_dict()
        if not hasattr(model, "peft_config"):
            return state
        frozen = {name for name, each in model.named_parameters() if not each.requires_grad}
        return {name: each for name, each in state.items() if name not in frozen}

    def evaluate(self) -> dict[str, float]:
        trainer = self._trainer
        control, history = copy.copy(trainer.control), list(trainer.state.log_history)
        self._is_evaluating = True
        try:
            metrics = trainer.evaluate()
        finally:
            self._is_evaluating = False
            trainer.control, trainer.state.log_history = control, history
        return {name: value for name, value in metrics.items() if not name.endswith(NOISE)}

    def log_values(self, values: Mapping[str, Any]) -> None:
        """Log the trainer's values."""
        for name, value in values.items() if not self._is_evaluating else ():
            if isinstance(value, int | float) and not name.endswith(NOISE):
                self._run.log(name, value)


class _StudyRate:
    """Stands in for a `Trainer`'s schedule when the study sets the learning rate."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def step(self, *_: Any) -> None:
        """Nothing to do: the next value is set with the next step."""

    def get_last_lr(self) -> list[float]:
        return [group["lr"] for group in self._optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {}


def _callback(loop: _Transformers) -> Any:
    from transformers import TrainerCallback

    class Steps(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            loop.begin_step()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            loop.log_values(logs or {})

    return Steps()
