"""A LightningModule in our loop: Lightning's own takes several times longer a step, and does not resume bit for bit."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from stagetree.integrations import lightning_module
from stagetree.integrations.lightning_module import (
    COUNTERS,
    DATA_METHODS,
    LogCapture,
    TrainerStandIn,
    base_of,
    refuse,
    refuse_own_loop,
    refuse_steps_here,
)
from stagetree.trainer.data_order import BatchSpan
from stagetree.trainer.tensors import Mean, one_number
from stagetree.trainer.torch_trainer import TorchTrainer


class LightningTrainer(TorchTrainer):
    """Trains a LightningModule by its `training_step`, `validation_step` and `configure_optimizers`.

        class Mine(LightningTrainer):
            name = "mine"

            def __init__(self, *, seed: int, device: str, width: int = 32) -> None:
                super().__init__(seed=seed, device=device, module=MyModule(width), datamodule=MyDataModule())

    Values that `validation_step` logs are the metrics: numbers as means over batches weighted by their size, a metric
    of torchmetrics computed once over the whole pass. Values that `training_step` logs are logged as by `Trainer.log`.
    Epoch hooks are called in Lightning's order: an epoch ends after validation, before the next one begins.
    `current_epoch`, `global_step` and `batch_idx` are Lightning's, also after a resume, and so are numbers, strings and
    flags that hooks change in attributes of modules, and the set of frozen parameters.

    `configure_optimizers` must give one optimizer. Its schedulers are ignored with a warning, since the study has
    sequences; the study's rate replaces its own, and groups keep their multiples. A method that Lightning would call
    and we do not is refused by name.
    """

    def __init__(self, *, module: Any = None, datamodule: Any = None, **arguments: Any) -> None:
        """As `TorchTrainer`, whose `model` is the module.

        datamodule: provides `train_data` and `valid_data`, unless other arguments or the module's own loaders do. Data
        sets, `collate_fn`, `drop_last`, validation's batch size and the worker processes are taken from the loaders.
        Training batches have the study's `bs`, or else the loader's size.

        Raises:
            ValueError: for a loader with a sampler of its own, and for methods that would not be called.
        """
        self._collate: Any = None
        self._place, self._datamodule = TrainerStandIn(), datamodule
        self._measured: dict[str, Any] = {}
        refuse_steps_here(type(self))
        module = arguments.pop("model", module)
        if module is not None:
            self._prepare(module)
        if datamodule is not None:
            base = base_of(datamodule, "LightningDataModule")
            refuse(datamodule, base, DATA_METHODS)
            datamodule.trainer = self._place
            datamodule.prepare_data()
            datamodule.setup("fit")
            arguments = {**self._loader_arguments(datamodule), **arguments}
        elif module is not None and "train_data" not in arguments:
            arguments = {**self._loader_arguments(module), **arguments}
        super().__init__(**{"model": module, **arguments})
        if self._sharding:
            raise ValueError(
                "a LightningModule keeps metrics and attributes of its own, which the ranks of a trial do not share: "
                "train it without shards"
            )

    def collate(self, samples: list[Any]) -> Any:
        """By the data module's `collate_fn`, if there is one."""
        return super().collate(samples) if self._collate is None else self._collate(samples)

    def make_optimizer(self, hp: dict[str, Any]) -> Optimizer:
        """The module's own optimizer, to which the study's values are applied. Raises ValueError if it cannot be
        used."""
        configured = self.model.configure_optimizers()  # type: ignore[operator]
        if _has_scheduler(configured):
            words = "has a scheduler, which is left out: the study's sequence of `lr` takes its place"
            warnings.warn(f"configure_optimizers of {type(self.model).__name__} {words}", stacklevel=2)
        if isinstance(configured, Mapping):
            configured = configured["optimizer"]
        while isinstance(configured, list | tuple):
            several = sum(isinstance(each, Optimizer) for each in configured) > 1
            if len(configured) == 0 or (isinstance(configured[0], Optimizer) and several):
                raise ValueError("configure_optimizers must give one optimizer: for several, write your own trainer")
            configured = configured[0]
        if not isinstance(configured, Optimizer):
            raise ValueError(f"configure_optimizers must give an optimizer, not {type(configured).__name__}")
        return configured

    def loss(self, batch: Any) -> Mean:
        """The result of `training_step`."""
        with LogCapture(self.model) as captured:
            output = _call_step(self.model.training_step, batch, self._place.batch_idx)
        self._tell(captured)
        loss: Mean = output["loss"] if isinstance(output, Mapping) else output
        return loss

    def measure(self, batch: Any) -> dict[str, Mean]:
        """The values that `validation_step` logs or returns as a dict; torchmetrics are computed after the pass."""
        batch = self._transfer(batch)
        with LogCapture(self.model) as captured:
            output = _call_step(self.model.validation_step, batch, self._place.batch_idx)
        self._place.batch_idx += 1
        self._measured |= captured.metrics
        metrics = {**captured.means, **(output if isinstance(output, Mapping) and not captured.means else {})}
        if not metrics and not captured.metrics and isinstance(output, Tensor):
            metrics = {"val_loss": output}
        return {name: value if isinstance(value, tuple) else torch.as_tensor(value) for name, value in metrics.items()}

    def train(self) -> None:
        """See `Trainer.train`."""
        self._place.training, self._place.validating = True, False
        super().train()

    def evaluate(self) -> dict[str, float]:
        """See `Trainer.evaluate`. Attributes that validation changes are restored, since training may depend on
        them."""
        at, before = self._place.batch_idx, lightning_module.attributes(self.model, _metrics())
        self._place.training, self._place.validating, self._place.batch_idx = False, True, 0
        try:
            return super().evaluate()
        finally:
            self._place.training, self._place.validating, self._place.batch_idx = True, False, at
            lightning_module.restore_attributes(self.model, before, _metrics())

    def state_dict(self) -> dict[str, Any]:
        """See `Trainer.state_dict`. Includes the counters of Lightning's own loop."""
        counted = {name: getattr(self._place, name) for name in COUNTERS}
        own = {
            "attributes": lightning_module.attributes(self.model, _metrics()),
            "frozen": lightning_module.frozen_names(self.model),
        }
        return {**super().state_dict(), "lightning": {**counted, **own}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Trainer.load_state_dict`."""
        if "lightning" not in state:
            raise ValueError("the checkpoint is of a LightningTrainer that counted no epochs: begin the study anew")
        own = state["lightning"]
        super().load_state_dict({name: each for name, each in state.items() if name != "lightning"})
        for name in COUNTERS:
            setattr(self._place, name, own[name])
        lightning_module.restore_attributes(self.model, own["attributes"], _metrics())
        lightning_module.freeze(self.model, own["frozen"])

    # Lightning's loop -----------------------------------------------------------------------------------------------

    def _take(self, model: nn.Module) -> None:
        if vars(model).get("_trainer") is not self._place:  # `build` has made a new one
            self._prepare(model)
        super()._take(model)

    def _prepare(self, module: Any) -> None:
        refuse_own_loop(module)
        module.trainer = self._place
        module.prepare_data()
        module.setup("fit")
        module.configure_model()

    def _next_batch(self) -> BatchSpan:
        whole, place = super()._next_batch(), self._place
        if not place.is_within_epoch or whole.epoch != place.current_epoch:
            if place.is_within_epoch:
                self._call("on_train_epoch_end")
            place.current_epoch, place.batch_idx, place.is_within_epoch = whole.epoch, 0, True
            self._call("on_train_epoch_start")
        return whole

    def _batch(self, span: BatchSpan) -> Any:
        return self._transfer(super()._batch(span))

    def _pass(self, span: BatchSpan) -> None:
        super()._pass(span)
        self._place.batch_idx += 1
        self._place.global_step += 1

    def _means(self) -> dict[str, float]:
        self._measured = {}
        for name in ("on_validation_start", "on_validation_epoch_start"):
            self._call(name)
        means = super()._means()
        for name in ("on_validation_epoch_end", "on_validation_end"):
            with LogCapture(self.model) as captured:
                getattr(self.model, name)()
            self._measured |= captured.metrics
            means |= {key: float(one_number(key, torch.as_tensor(value))) for key, value in captured.values.items()}
        for name, metric in self._measured.items():
            means[name] = float(one_number(name, metric.compute()))
        for metric in self._measured.values():
            metric.reset()
        self._measured = {}
        return means

    def _call(self, name: str) -> None:
        with LogCapture(self.model) as captured:
            getattr(self.model, name)()
        self._tell(captured)

    def _tell(self, captured: LogCapture) -> None:
        for name, value in captured.values.items():
            self.log(name, value)
        for name, metric in captured.metrics.items():  # computed a batch, since training has no end
            self.log(name, metric.compute())
            metric.reset()

    def _transfer(self, batch: Any) -> Any:
        own = "on_after_batch_transfer"
        data = self._datamodule
        names = (
            () if data is None else lightning_module.overridden_names(data, base_of(data, "LightningDataModule"), ())
        )
        owner = data if own in names else self.model
        return getattr(owner, own)(batch, 0)

    def _loader_arguments(self, datamodule: Any) -> dict[str, Any]:
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
    """Refuse samplers: the order of samples is a function of seed and epoch."""
    if not isinstance(loader, DataLoader):
        raise ValueError(f"a loader of the data module must be one DataLoader, not {type(loader).__name__}")
    samplers = type(loader.batch_sampler), type(loader.sampler)
    if samplers not in ((BatchSampler, RandomSampler), (BatchSampler, SequentialSampler)):
        raise ValueError(
            f"a loader of the data module has an order of its own, by {samplers[1].__name__}: leave its samplers out, "
            "and override `order` for another than a random one"
        )


def _call_step(step: Any, batch: Any, number: int) -> Any:
    """Call a step of a module, which may not take `batch_idx`."""
    parameters = inspect.signature(step).parameters
    return step(batch, number) if len(parameters) > 1 else step(batch)


def _has_scheduler(configured: Any) -> bool:
    if isinstance(configured, Mapping):
        return "lr_scheduler" in configured
    if not isinstance(configured, list | tuple):
        return False
    pairs = len(configured) == 2 and isinstance(configured[0], list | tuple)
    return (
        bool(configured[1]) if pairs else any(isinstance(each, Mapping) and _has_scheduler(each) for each in configured)
    )


def _metrics() -> tuple[type, ...]:
    """Metrics accumulate in attributes of their own until a pass is over."""
    from torchmetrics import Metric

    return (Metric,)
