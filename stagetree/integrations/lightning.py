"""A LightningModule in our loop: its own would cost several times more a step, and not go on to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from stagetree.torch_trainer import TorchTrainer


class LightningTrainer(TorchTrainer):
    """Trains a LightningModule by its `training_step`, `validation_step` and `configure_optimizers`.

        class Mine(LightningTrainer):
            name = "mine"

            def __init__(self, *, seed: int, device: str, width: int = 32) -> None:
                data = MyDataModule()
                data.setup("fit")
                super().__init__(
                    seed=seed, device=device, model=MyModule(width), train_data=data.train, valid_data=data.valid
                )

    Data are data sets, not loaders. What `validation_step` logs are the metrics, means over batches weighted by their
    size. Of `configure_optimizers`, one optimizer is taken; its schedulers are left out, since sequences are the
    study's. Callbacks, loggers and a Trainer of Lightning's are not there.
    """

    def make_optimizer(self, hp: dict[str, Any]) -> Optimizer:
        """The module's own, with the study's values to be brought into force."""
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
        with _Logged(self.model):
            found = self.model.training_step(batch, 0)  # type: ignore[operator]
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


class _Logged:
    """Catches what a module logs, which else wants a Trainer of Lightning's."""

    def __init__(self, module: Any) -> None:
        self._module, self.values = module, dict[str, Any]()

    def __enter__(self) -> _Logged:
        self._module.__dict__["log"] = lambda name, value, *_, **__: self.values.__setitem__(name, value)
        self._module.__dict__["log_dict"] = lambda values, *_, **__: self.values.update(values)
        return self

    def __exit__(self, *_: object) -> None:
        for name in ("log", "log_dict"):
            del self._module.__dict__[name]


def _optimizers(made: Any) -> Any:
    return (each for each in made if isinstance(each, Optimizer))
