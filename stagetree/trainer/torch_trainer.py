"""Training with PyTorch: provide a model, an optimizer, data and a loss; `TorchTrainer` does the rest."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import TensorDataset

from stagetree.limits import DATA, DATA_SEED
from stagetree.trainer.data_order import Batching, BatchSpan, explain_single_sample, parts
from stagetree.trainer.optimizer_groups import Precision, Rates
from stagetree.trainer.owned_model import ModelTrainer, clip_grad_norm, load_model, load_optimizer
from stagetree.trainer.ranks.sharding import refuse_inexact
from stagetree.trainer.sample_loading import Loading, Samples
from stagetree.trainer.streaming import TrainData
from stagetree.trainer.tensors import Mean, PartMeans, evaluating, export_model, map_tensors, mean_of, whole_number
from stagetree.trainer.values import NamedValues, has_changed


class TorchTrainer(ModelTrainer):
    """A trainer for one PyTorch model. A complete example:

        class Digits(TorchTrainer):
            name = "digits"

            def __init__(self, *, seed: int, device: str, width: int = 32) -> None:
                train, valid = digits()
                super().__init__(seed=seed, device=device, model=Net(width), train_data=train, valid_data=valid)

            def make_optimizer(self, hp):
                return torch.optim.SGD(self.model.parameters(), lr=hp["lr"])

            def loss(self, batch):
                images, labels = batch
                return cross_entropy(self.model(images), labels)

    Hyper-parameters it knows: `bs` or `batch_size`, `data`, `data_seed`, `seq_len`, `optimizer` (a change makes a new
    one), the arguments of `build`, and the fields of the optimizer's parameter groups, such as `lr`, `momentum` and
    `weight_decay`. For more, override `apply`.

    Data is a `TensorDataset`, moved to the device once, any map-style data set, or a stream with a `state_dict`; or a
    dict of these, where `data` names one of them or gives the weights of a mix.

    Attributes:
        model: the model, on `device`.
        optimizer: the result of `make_optimizer`; set by the first `setup`.
        hp: the hyper-parameters in force.
        batch_size: samples in a training batch.
        epoch, offset: the position in the data: finished passes, and samples seen since.
    """

    def __init__(
        self,
        *,
        seed: int,
        device: str,
        train_data: TrainData,
        valid_data: TensorDataset | Samples,
        model: nn.Module | None = None,
        batches_per_step: int | None = None,
        steps_per_epoch: int | None = None,
        drop_last: bool = False,
        micro_batch_size: int | None = None,
        shards: int | None = None,
        parallel: str | None = None,
        eval_batch_size: int | None = None,
        clip_grad_norm: float | None = None,
        precision: str = "fp32",
        average_decay: float | None = None,
        compile: bool = False,
        num_workers: int = 0,
        prefetch_factor: int = 2,
        pin_memory: bool | None = None,
    ) -> None:
        """Take the model and the data that the subclass has built.

        Args:
            seed: orders the data and seeds the generators of the transforms.
            device: where model and tensors go.
            train_data: the data to train on, in another order each epoch; or several data sets, by name.
            valid_data: the data that `evaluate` measures on.
            model: any module; in training mode, if it should train in it. None calls `build`.
            batches_per_step: batches in one step; None makes a step one pass over `train_data`.
            steps_per_epoch: steps in one pass over `train_data`, at any batch size; instead of `batches_per_step`.
            drop_last: leave out an incomplete batch at the end of an epoch.
            micro_batch_size: samples on the device at once; the gradients of a larger batch are accumulated.
            shards: the number of parts of a batch, for several devices to share; None takes the study's.
            parallel: `tree`, or `fsdp` to also divide the parameters among the devices; None takes the study's.
            eval_batch_size, clip_grad_norm: samples to evaluate at once; the largest norm of the whole gradient.
            precision: `fp32`, or the dtype of autocast: `bf16`, or `fp16` with scaled losses.
            average_decay: of a moving average of the parameters, which `evaluate` measures, with the model's buffers.
            compile: whether to `torch.compile` the model, which may round differently.
            num_workers: processes that read a map-style data set ahead; like the next two, it changes no result.
            prefetch_factor: batches that each of them reads ahead.
            pin_memory: whether these batches wait in pinned memory; None: if there is a GPU.

        Raises:
            TypeError, ValueError: for data that cannot be read by index, and for invalid values.
        """
        super().__init__(
            seed=seed,
            device=device,
            train_data=train_data,
            valid_data=valid_data,
            batching=Batching(batches_per_step, steps_per_epoch, drop_last, micro_batch_size, shards, parallel),
            eval_batch_size=eval_batch_size,
            loading=Loading(num_workers, prefetch_factor, device != "cpu" if pin_memory is None else pin_memory),
        )
        if clip_grad_norm is not None and not clip_grad_norm > 0:
            raise ValueError(f"clip_grad_norm must be more than 0, not {clip_grad_norm!r}")
        self.hp, self.clip_grad_norm = dict[str, Any](), clip_grad_norm
        self._precision = Precision(precision, device)
        self._parts = self._sharding.means if self._sharding else PartMeans()
        self._begin_with(model, average_decay, compile)

    # To be overridden -------------------------------------------------------------------------------------------------

    @abstractmethod
    def make_optimizer(self, hp: dict[str, Any]) -> Optimizer:
        """An optimizer over `self.model` for these hyper-parameters; called at the first step, and to replace it.

        Groups may use different multiples of `hp["lr"]` and `hp["weight_decay"]`, or set them by `lr_scale` and the
        like. It may be called several times, to find the multiples.
        """

    def measure(self, batch: Any) -> Mapping[str, Mean]:
        """The metrics of one batch, each a mean over its samples or (sum, count); `evaluate` averages them."""
        return {"val_loss": self.loss(batch)}

    def train_batch(self, batch: Any) -> None:
        """Learn from one batch. Override it for what `clip_grad_norm`, `micro_batch_size` and `after_step` cannot
        do."""
        self.optimizer.zero_grad()
        self.accumulate(batch)
        self.update()

    def after_step(self) -> None:
        """Called after each update of the parameters by the optimizer."""

    def apply(self, name: str, value: Any) -> None:
        """Apply one hyper-parameter. Override it for names of your own, and call this for the rest.

        `momentum` is the first beta of Adam-like optimizers. A group of parameters to which `make_optimizer` gave a
        multiple of the rate keeps it.

        Raises:
            ValueError: if neither the data nor the optimizer knows the name, or the batch size is not positive.
        """
        if name in ("bs", "batch_size"):
            self._take_batch_size(name, value)
        elif name == DATA_SEED:
            self._take_data_seed(name, value)
        elif name == DATA:
            self._take_data(name, value)
        elif name == "seq_len":
            self.seq_len = whole_number(name, value)
        elif name != "optimizer":
            self._rates.apply(name, {**self.hp, name: value})
        self._known_names.add(name)

    # To be called by subclasses ---------------------------------------------------------------------------------------

    def accumulate(self, batch: Any, share: float = 1.0) -> None:
        """Accumulate the gradient of a batch. share: its part of the step's samples."""
        with self.autocast():
            loss = self.loss(batch) if self._sharding is None else self._sharding.loss_of(batch, self.loss)
            loss = self._parts.take("the loss", loss, share)
        self._precision.backward(loss)
        self._parts.put_right(self.model.parameters())

    def update(self) -> None:
        """Update the parameters from the accumulated gradient."""
        self._parts.refuse_rest()
        if self.clip_grad_norm is not None:
            self._precision.unscale(self.optimizer)
            clip_grad_norm(self.model.parameters(), self.clip_grad_norm)
        self._precision.step(self.optimizer)
        if self._average:
            self._average.update()
        self.after_step()

    def autocast(self) -> AbstractContextManager[Any]:
        """The context in which the model computes in `precision`."""
        return self._precision.autocast()

    # Called by the runner ---------------------------------------------------------------------------------------------

    def setup(self, hp: dict[str, Any]) -> None:
        """See `Trainer.setup`. A new `optimizer` starts without the old one's state."""
        if not hasattr(self, "hp"):
            raise RuntimeError(f"{type(self).__name__}.__init__ must call super().__init__(...)")
        self._known_names = {"optimizer"}
        before, self.hp = self.hp, self.hp | hp
        keeps_model = self._keep_or_build()
        is_same = keeps_model and hasattr(self, "optimizer") and not has_changed({"optimizer"}, before, hp)
        if not is_same:
            self.optimizer = self.make_optimizer(NamedValues(self.hp))
            self._rates = Rates(self.optimizer, self.make_optimizer)
        for name, value in (hp if is_same else self.hp).items():
            if name not in self._shaping():
                self.apply(name, value)
        if has_changed(hp.keys() - self._known_names, before, hp):  # worker processes need the new values
            self._train_reader.restart()
            self._forget_orders()
        self._known_names.clear()  # a continuation is set up with other names, and must hold the same

    def begin(self, weights: dict[str, Any]) -> None:
        """See `Trainer.begin`. All names of the model's `state_dict` must be there; override it to load only some."""
        load_model(self.model, weights)

    def train(self) -> None:
        """See `Trainer.train`. The last batch of an epoch may be smaller, unless `drop_last`."""
        if self._is_without_state:
            raise ValueError(f"{', '.join(self._shaping())} cannot change during a trial: the model has that shape")
        for _ in range(self._batches_in_step()):
            whole = self._next_batch()
            with explain_single_sample(whole):
                if not self._sharding and self._batching.micro_size is None:
                    self.train_batch(self._batch(whole))
                else:
                    self._train_in_parts(whole)
            self._pass(whole)

    def _take(self, model: nn.Module) -> None:
        if self._sharding:
            refuse_inexact(self, TorchTrainer, model, is_fixed=self._sharding.is_fixed)
        super()._take(model)

    def _train_in_parts(self, whole: BatchSpan) -> None:
        self._learn(whole)
        self.update()

    def _learn(self, whole: BatchSpan) -> None:
        def learn(span: BatchSpan) -> None:
            for part in self._passes(whole, span):
                self.accumulate(self._batch(part), len(part.indices) / len(whole.indices))

        self.optimizer.zero_grad()
        if self._sharding is None:
            learn(whole)
        else:
            self._sharding.learn(whole, self.model, self.optimizer, learn)

    def _passes(self, whole: BatchSpan, span: BatchSpan) -> Iterator[BatchSpan]:
        """The parts of a batch, or of a shard of it, to learn from at once."""
        if self._sharding is None:
            yield from parts(span, self._batching.micro_size)
            return
        passes = self._sharding.passes(whole, span, self._batching.micro_size)
        for part in passes:
            self._sharding.begin_pass(is_last=part is passes[-1])
            yield part

    def evaluate(self) -> dict[str, float]:
        """See `Trainer.evaluate`. Modules are in evaluation mode here, and restored to their own mode afterwards."""
        averaged = self._average.swapped_in() if self._average else nullcontext()
        with evaluating(self.model), torch.no_grad(), averaged, self.autocast():
            return self._means_of_model()

    def export(self, folder: Path) -> None:
        """See `Trainer.export`. A model with `save_pretrained`, as in Transformers and PEFT, writes itself."""
        export_model(self.model, folder, self._average)

    def average(self, states: Iterable[tuple[dict[str, Any], float]]) -> dict[str, Any]:
        """See `Trainer.average`. Floating-point parameters and buffers are averaged; the rest is the first state's."""
        mean = mean_of(states, ("model", "average"))
        if any(name.endswith("num_batches_tracked") for name in mean["model"]):
            print("--- running statistics of batch normalization are averaged: they may not fit the averaged weights")
        return mean

    def state_dict(self) -> dict[str, Any]:
        """See `Trainer.state_dict`. The result holds the live tensors."""
        state: dict[str, Any] = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        if self._precision.is_scaled:
            state["scaler"] = self._precision.state_dict()
        if self._average:
            state["average"] = self._average.state_dict()
        return dict(map_tensors(state, Tensor.detach)) | self._data_place()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Trainer.load_state_dict`."""
        self._warm_up()
        self._load_model(state["model"])
        load_optimizer(self.optimizer, state["optimizer"], self.device)
        self._precision.load_state_dict(state.get("scaler", {}))
        if self._average:
            self._average.load_state_dict(state["average"])
        self._go_to(state)
        self._is_without_state = False
