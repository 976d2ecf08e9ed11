"""A LightningModule in our loop: its own would cost several times more a step, and not go on to the bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from stagetree.torch_trainer import TorchTrainer

NOT_CALLED = (
    *("backward", "optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping", "on_train_batch_start"),
    *("on_train_batch_end", "on_before_zero_grad", "on_before_backward", "on_after_backward"),
    "on_before_optimizer_step",
)
"""Methods of a module that may change how it learns, and that only Lightning's own loop calls."""


class LightningTrainer(TorchTrainer):
    """Trains a LightningModule by its `training_step`, `validation_step` and `configure_optimizers`.

        class Mine(LightningTrainer):
            name = "mine"

            def __init__(self, *, seed: int, device: str, width: int = 32) -> None:
                super().__init__(seed=seed, device=device, module=MyModule(width), datamodule=MyDataModule())

    What `validation_step` logs are the metrics, means over batches weighted by their size; what `training_step` logs
    is logged as by `Trainer.log`. Of `configure_optimizers`, one optimizer is taken; its schedulers are left out, since
    sequences are the study's, and the study's rate takes the place of its own, of which groups keep their multiples.
    Callbacks, loggers and a Trainer of Lightning's are not there: `current_epoch` and `global_step` stay 0. A module
    that has a say in its optimization by other methods is refused.
    """

    def __init__(self, *, module: Any = None, datamodule: Any = None, **arguments: Any) -> None:
        """As `TorchTrainer`, whose `model` is the module.

        datamodule: gives `train_data` and `valid_data`, or other arguments say what they are. Of its loaders are taken
        the data sets, `collate_fn`, `drop_last`, the size of validation's batches, and the processes that read.
        Training's batches have the study's `bs`, or else the size of the loader's.

        Raises:
            ValueError: for a loader with a sampler of its own.
        """
        self._collate: Any = None
        if datamodule is not None:
            arguments = {**self._given_by(datamodule), **arguments}
        super().__init__(**{"model": module, **arguments})

    def collate(self, samples: list[Any]) -> Any:
        """By the `collate_fn` of the data module, if there is one."""
        return super().collate(samples) if self._collate is None else self._collate(samples)

    def make_optimizer(self, hp: dict[str, Any]) -> Optimizer:
        """The module's own, with the study's values to be brought into force. Raises ValueError: it cannot be used."""
        _refuse_own_loop(self.model)
        made = self.model.configure_optimizers()  # type: ignore[operator]
        if isinstance(made, Mapping):
            made = made["optimizer"]
        while isinstance(made, list | tuple):
            if len(made) == 0 or (isinstance(made[0], Optimizer) and len([*_optimizers(made)]) > 1):
                raise ValueError("configure_optimizers must give one optimizer: for several, write your own trainer")
            made = made[0]
        if not isinstance(made, Optimizer):
            raise ValueError(f"configure_optimizers must give an optimizer, not {type(made).__name__}")
        return made

    def loss(self, batch: Any) -> Tensor:
        """What `training_step` returns."""
        with _Logged(self.model) as logged:
            found = self.model.training_step(batch, 0)  # type: ignore[operator]
        for name, value in logged.values.items():
            self.log(name, value)
        loss: Tensor = found["loss"] if isinstance(found, Mapping) else found
        return loss

    def measure(self, batch: Any) -> dict[str, Tensor]:
        """What `validation_step` logs, or returns as a dict."""
        with _Logged(self.model) as logged:
            found = self.model.validation_step(batch, 0)  # type: ignore[operator]
        metrics = {**logged.values, **(found if isinstance(found, Mapping) else {})}
        if not metrics and isinstance(found, Tensor):
            metrics = {"val_loss": found}
        return {name: torch.as_tensor(value) for name, value in metrics.items()}

    def _given_by(self, datamodule: Any) -> dict[str, Any]:
        datamodule.prepare_data()
        datamodule.setup("fit")
        train, valid = datamodule.train_dataloader(), datamodule.val_dataloader()
        for each in (train, valid):
            _refuse_own_order(each)
        self._collate, self.batch_size = train.collate_fn, train.batch_size
        return {
            "train_data": train.dataset,
            "valid_data": valid.dataset,
            "drop_last": train.drop_last,
            "eval_batch_size": valid.batch_size,
            "num_workers": train.num_workers,
            "prefetch_factor": train.prefetch_factor or 2,
        }


def _refuse_own_order(loader: Any) -> None:
    """Which samples come when is ours to decide, as a function of seed and epoch."""
    if not isinstance(loader, DataLoader):
        raise ValueError(f"a loader of the data module must be one DataLoader, not {type(loader).__name__}")
    samplers = type(loader.batch_sampler), type(loader.sampler)
    if samplers not in ((BatchSampler, RandomSampler), (BatchSampler, SequentialSampler)):
        raise ValueError(
            f"a loader of the data module has an order of its own, by {samplers[1].__name__}: leave its samplers out, "
            "and override `order` for another than a random one"
        )


def _refuse_own_loop(module: Any) -> None:
    """What a module does itself around its optimizer would be left out without a word."""
    kind = type(module)
    if not module.automatic_optimization:
        raise ValueError(f"{kind.__name__} has automatic_optimization = False and trains by itself: write a Trainer")
    base = next(each for each in kind.__mro__ if each.__name__ == "LightningModule")
    own = [name for name in NOT_CALLED if getattr(kind, name) is not getattr(base, name)]
    if own:
        raise ValueError(
            f"{kind.__name__}.{own[0]} is not called here: leave it out, and do the same with an argument such as "
            "clip_grad_norm, in `after_step`, or in a `train_batch` of your trainer"
        )


class _Logged:
    """Catches what a module logs, which else wants a Trainer of Lightning's."""

    def __init__(self, module: Any) -> None:
        self._module, self.values = module, dict[str, Any]()

    def __enter__(self) -> _Logged:
        self._module.__dict__["log"] = self._log
        self._module.__dict__["log_dict"] = self._log_dict
        return self

    def __exit__(self, *_: object) -> None:
        for name in ("log", "log_dict"):
            del self._module.__dict__[name]

    def _log(self, name: str, value: Any, *_: Any, **__: Any) -> None:
        if hasattr(value, "compute") and hasattr(value, "reset"):  # a metric of torchmetrics: that of this batch
            value, metric = value.compute(), value
            metric.reset()
        self.values[name] = value

    def _log_dict(self, values: Mapping[str, Any], *_: Any, **__: Any) -> None:
        for name, value in values.items():
            self._log(name, value)


def _optimizers(made: Any) -> Iterator[Optimizer]:
    return (each for each in made if isinstance(each, Optimizer))
