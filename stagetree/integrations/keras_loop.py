"""Keras 3 on torch, as a trainer of studies: `model.fit` unchanged.

    run = stagetree.attach("keras", ...)
    model.compile(optimizer, loss, metrics)
    stagetree.integrations.keras_loop.keras(run, model, x, y, validation_data=(x2, y2), batch_size=32)

A step is an epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stagetree.functions import Run
from stagetree.integrations.framework_loop import (
    Apply,
    FrameworkLoop,
    Hp,
    refuse_name,
    refuse_schedule,
    refuse_stopping,
)

ENDLESS = 2**31 - 1
"""Epochs: the study decides when a trial ends."""

NAMES = {"lr": "learning_rate"}
"""Names of hyper-parameters in Keras optimizers where they differ from the study's."""


def keras(run: Run, model: Any, *data: Any, validation_data: Any, apply: Apply | None = None, **fit: Any) -> None:
    """Train a compiled Keras model by its own `fit`, with callbacks and arguments.

    A step is an epoch. `lr` or `learning_rate`, and other attributes of the optimizer such as `weight_decay`, come from
    the study. The metrics are those of `model.evaluate(*validation_data)`, prefixed with `val_`; training metrics are
    logged.

    data, fit: arguments of `model.fit`. apply: applies all other hyper-parameters before each epoch.

    Raises ValueError if Keras has another backend, and for what a study decides: `EarlyStopping`, and a schedule of the
    optimizer's own.
    """
    _Keras(run, model, data, validation_data, apply, fit).train()


class _Keras(FrameworkLoop):
    name = "model.fit"

    def __init__(
        self, run: Run, model: Any, data: tuple[Any, ...], validation: Any, apply: Apply | None, fit: dict[str, Any]
    ) -> None:
        super().__init__(run, apply)
        import keras as framework

        if framework.backend.backend() != "torch":
            raise ValueError(f"Keras has the backend {framework.backend.backend()}: set KERAS_BACKEND=torch")
        callbacks = list(fit.pop("callbacks", None) or [])
        refuse_stopping(callbacks, "EarlyStopping")
        schedule = getattr(model.optimizer, "_learning_rate", None)
        if isinstance(schedule, framework.optimizers.schedules.LearningRateSchedule):
            refuse_schedule(type(schedule).__name__, "compile with a number, and give the study `lr` as a sequence")
        self._model, self._data, self._validation, self._fit = model, data, validation, fit
        self._callbacks = [_callback(self, framework), *callbacks]
        self._epoch = 0
        if not model.built:
            model(data[0][:1])
        model.optimizer.build(model.trainable_variables)

    def fit(self, folder: Path, state: Any) -> None:
        options = {"epochs": ENDLESS, "initial_epoch": self._epoch, "verbose": 0, **self._fit}
        self._model.fit(*self._data, callbacks=self._callbacks, **options)

    def begin(self, epoch: int) -> None:
        """An epoch begins."""
        self._epoch = epoch
        self.begin_step()

    def apply(self, hp: Hp) -> None:
        optimizer = self._model.optimizer
        for name, value in hp.items():
            key = NAMES.get(name, name)
            if hasattr(optimizer, key):
                setattr(optimizer, key, value)
            elif self._apply is None:
                refuse_name(name, f"{type(optimizer).__name__} has none")

    def save(self) -> Any:
        return {"epoch": self._epoch, "variables": [each.numpy() for each in self._variables()]}

    def load(self, state: Any) -> None:
        for variable, value in zip(self._variables(), state["variables"], strict=True):
            variable.assign(value)
        self._epoch = state["epoch"]

    def evaluate(self) -> dict[str, float]:
        metrics = self._model.evaluate(*self._validation, return_dict=True, verbose=0)
        self._model.reset_metrics()
        return {f"val_{name}": float(value) for name, value in metrics.items()}

    def log_values(self, values: dict[str, Any]) -> None:
        """Log an epoch's training metrics."""
        for name, value in values.items():
            self._run.log(name, value)

    def _variables(self) -> Iterable[Any]:
        """Weights, optimizer variables, and seeds of random layers; not the accumulators of metrics."""
        metrics = {id(each) for each in self._model.metrics_variables}
        own = [each for each in self._model.variables if id(each) not in metrics]
        return [*own, *self._model.optimizer.variables]


def _callback(loop: _Keras, framework: Any) -> Any:
    class Epochs(framework.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            loop.begin(epoch)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            loop.log_values({name: float(value) for name, value in (logs or {}).items()})

    return Epochs()
