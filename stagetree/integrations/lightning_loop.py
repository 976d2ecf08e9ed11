"""Lightning's own `Trainer`, and `LightningCLI`, as trainers of studies.

    run = stagetree.attach("cli", ...)
    cli = LightningCLI(Model, Data, run=False)
    stagetree.integrations.lightning_loop.lightning(run, cli.trainer, cli.model, cli.datamodule)

A step is an epoch, since Lightning's checkpoints between epochs are complete with any loader.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
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

NOT_STATE = ("hyper_parameters", "hparams_", "datamodule_", "pytorch-lightning_version")
"""Prefixes of names in Lightning's checkpoints that are not state: the script builds its model from them."""

SAVING_CALLBACKS = ("ModelCheckpoint", "SaveConfigCallback")
"""Callbacks that write what the study keeps, and all trials to the same place."""

CLOCK = "Timer"
"""A callback whose state is the elapsed time; no step depends on it unless it stops the training."""

LOG_COUNTER = "_batches_that_stepped"
"""The counter that Lightning logs by: the step, or one off after resuming."""

ENDLESS = -1
"""Epochs and steps: the study decides when a trial ends."""


def lightning(run: Run, trainer: Any, model: Any, datamodule: Any = None, apply: Apply | None = None) -> None:
    """Train a LightningModule by a `Trainer` of Lightning, as its user has made both, with hooks and callbacks.

    A step is an epoch. `lr`, and other values of the optimizers' groups, come from the study; each group keeps its
    multiple of the first one's. The study evaluates by the module's validation, whose logged values are the metrics;
    values that training logs are logged. The trainer's own validation, `max_epochs` and `max_steps` have no effect; a
    `ModelCheckpoint` and the CLI's `SaveConfigCallback` are removed, since the study keeps states and configurations.

    datamodule: with `train_dataloader` and `val_dataloader`; otherwise the module has them. apply: applies all other
    hyper-parameters before each epoch.

    Raises ValueError for what a study decides: `EarlyStopping`, a `Timer` that stops (as `max_time` makes one), and a
    scheduler of the module's own if the study has no `lr`.
    """
    _Lightning(run, trainer, model, datamodule, apply).train()


class _Lightning(FrameworkLoop):
    name = "Lightning"

    def __init__(self, run: Run, trainer: Any, model: Any, datamodule: Any, apply: Apply | None) -> None:
        super().__init__(run, apply)
        self._trainer, self._model, self._data = trainer, model, datamodule
        refuse_stopping(trainer.callbacks, "EarlyStopping")
        refuse_stopping((each for each in trainer.callbacks if getattr(each, "_duration", None) is not None), CLOCK)
        callbacks = [each for each in trainer.callbacks if type(each).__name__ not in SAVING_CALLBACKS]
        trainer.callbacks = [_callback(self), *callbacks]
        trainer.fit_loop.max_epochs = trainer.fit_loop.epoch_loop.max_steps = ENDLESS
        trainer.num_sanity_val_steps, trainer.check_val_every_n_epoch = 0, 2**31
        source = model if datamodule is None else datamodule
        loader = source.train_dataloader
        source.train_dataloader = lambda: _LazyLoader(loader())
        self._groups, self._measured = list[RateGroups](), set[str]()

    def fit(self, folder: Path, state: Any) -> None:
        path = None
        if state is not None:
            import lightning
            import torch

            path = folder / "resumed.ckpt"
            counters = state["loops"]["fit_loop"]["epoch_loop.state_dict"]
            counters[LOG_COUNTER] = state["global_step"] - 1  # Lightning adds one
            torch.save({**state, "pytorch-lightning_version": str(lightning.__version__)}, path)
        self._trainer.fit(self._model, datamodule=self._data, ckpt_path=path)

    def begin_step(self) -> None:
        if not self._groups:
            firsts = [each.param_groups[0] for each in self._trainer.optimizers]
            own = [
                {"lr": each.get("initial_lr", each["lr"]), "weight_decay": each.get("weight_decay", 0.0)}
                for each in firsts
            ]
            self._groups = [RateGroups(*each) for each in zip(self._trainer.optimizers, own, strict=True)]
        super().begin_step()

    def apply(self, hp: Hp) -> None:
        trainer = self._trainer
        values = group_names(hp)
        if trainer.lr_scheduler_configs and "lr" not in values:
            own = type(trainer.lr_scheduler_configs[0].scheduler).__name__
            instead = "give the study `lr` as a sequence, or let configure_optimizers return optimizers only"
            refuse_schedule(own, instead)
        trainer.strategy.lr_scheduler_configs = []
        for name, value in values.items():
            places = [each for each in zip(self._groups, trainer.optimizers, strict=True) if name in each[0].names]
            for groups, optimizer in places:
                groups.set(optimizer, name, value)
            if not places and self._apply is None:
                names = ", ".join(sorted({each for groups in self._groups for each in groups.names}))
                refuse_name(name, f"the optimizers have {names}")

    def save(self) -> Any:
        import torch

        loop = self._trainer.fit_loop.epoch_loop
        for progress in (loop.batch_progress, loop.scheduler_progress, loop.automatic_optimization.optim_progress):
            progress.reset_on_run()  # as the loop does at once, when the epoch begins
        with TemporaryDirectory(prefix="stagetree-") as folder:
            path = Path(folder, "saved.ckpt")
            self._trainer.save_checkpoint(path)
            state = torch.load(path, weights_only=False, map_location="cpu")
        loops = state["loops"]["fit_loop"]
        loops["epoch_loop.state_dict"].pop(LOG_COUNTER, None)
        epochs = loops["epoch_progress"]["current"]
        epochs["ready"] = epochs["completed"] + 1  # a resumed loop does not count the epoch as begun
        for each in self._trainer.callbacks:
            if type(each).__name__ == CLOCK:
                state["callbacks"].pop(each.state_key, None)
        return {name: value for name, value in state.items() if not name.startswith(NOT_STATE)}

    def load(self, state: Any) -> None:
        self._model.load_state_dict(state["state_dict"])
        for optimizer, saved in zip(self._trainer.optimizers, state["optimizer_states"], strict=True):
            optimizer.load_state_dict(saved)

    def evaluate(self) -> dict[str, float]:
        trainer = self._trainer
        trainer.validating = True
        try:
            outputs = trainer.fit_loop.epoch_loop.val_loop.run()
        finally:
            trainer.fit_loop.epoch_loop.val_loop.batch_progress.reset()
            trainer.training = True
        metrics = {name: float(value) for each in outputs for name, value in each.items()}
        self._measured |= metrics.keys()
        return metrics

    def log_values(self, values: Mapping[str, Any]) -> None:
        """Log an epoch's values."""
        for name, value in values.items():
            if name not in self._measured:
                self._run.log(name, value)


class _LazyLoader:
    """A loader whose pass begins with its first batch, since Lightning may create the iterator earlier."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        yield from self._loader

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _callback(loop: _Lightning) -> Any:
    from lightning.pytorch import Callback

    class Epochs(Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            loop.begin_step()

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            loop.log_values({name: float(value) for name, value in trainer.callback_metrics.items()})

    return Epochs()
