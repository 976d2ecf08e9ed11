"""Training with PyTorch: give a model, an optimizer, data and a loss; `TorchTrainer` does the rest.

The order of the data is a function of (seed, epoch), so the place in it is two integers, the epoch and the number of
its samples already seen. That is why a checkpoint needs no sampler state, and why a batch size may change in the middle
of an epoch: training goes on from the next sample.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, Protocol

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import TensorDataset, default_collate

from stagetree.trainer import Trainer


class Samples(Protocol):
    """What is learned from: a map-style data set, or any sequence of samples."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class TorchTrainer(Trainer):
    """A trainer for one PyTorch model. A whole one:

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

    Hyper-parameters it knows: `bs` or `batch_size`, `optimizer` (a change of it makes a new one), and whatever the
    optimizer keeps in its parameter groups, such as `lr`, `momentum` and `weight_decay`. For more, override `apply`.

    Data is a `TensorDataset`, moved to the device once, or any map-style data set, read sample by sample.

    Attributes:
        model: the model, on `device`.
        optimizer: what `make_optimizer` returned; there from the first `setup` on.
        hp: the hyper-parameters in force.
        batch_size: samples in a training batch.
        epoch, offset: the place in the data: passes finished, and samples seen since.
    """

    batch_size: int = 32
    """Used where the study has no hyper-parameter `bs` or `batch_size`."""

    eval_batch_size: int = 1000
    """Samples measured at once. It is no hyper-parameter: a metric does not depend on how a trial is trained."""

    def __init__(
        self,
        *,
        seed: int,
        device: str,
        model: nn.Module,
        train_data: TensorDataset | Samples,
        valid_data: TensorDataset | Samples,
        batches_per_step: int | None = None,
    ) -> None:
        """Take what the subclass has built.

        Args:
            seed: orders the data and feeds the generators given to the transforms.
            device: where model and tensors go.
            model: any module; in training mode, if it should train in it.
            train_data: what `train` goes through, in another order each epoch.
            valid_data: what `evaluate` measures on.
            batches_per_step: batches in one step; None makes a step one pass over `train_data`.
        """
        super().__init__(seed=seed, device=device)
        self.model = model.to(device)
        self.optimizer: Optimizer
        self.hp: dict[str, Any] = {}
        self.epoch = 0
        self.offset = 0
        self._train_data = _on_device(train_data, device)
        self._valid_data = _on_device(valid_data, device)
        self._batches_per_step = batches_per_step
        self._order: tuple[int, Tensor] | None = None

    # What a subclass says -------------------------------------------------------------------------------------------

    @abstractmethod
    def make_optimizer(self, hp: dict[str, Any]) -> Optimizer:
        """An optimizer over `self.model` for these hyper-parameters; called at the first step, and to swap it."""

    @abstractmethod
    def loss(self, batch: Any) -> Tensor:
        """The scalar to minimise: the mean over the samples of one batch."""

    def measure(self, batch: Any) -> dict[str, Tensor]:
        """The metrics of one batch, each a mean over its samples; `evaluate` averages them over all."""
        return {"val_loss": self.loss(batch)}

    def train_batch(self, batch: Any) -> None:
        """Learn from one batch. Override it to clip gradients or the like."""
        self.optimizer.zero_grad()
        self.loss(batch).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def transform(self, sample: Any, generator: Generator) -> Any:
        """Augment one training sample of a map-style data set.

        Args:
            sample: what the data set holds.
            generator: seeded by (seed, epoch, index of the sample), so batches and workers make no difference.
        """
        return sample

    def transform_batch(self, batch: Any, generator: Generator) -> Any:
        """Augment one training batch, already on the device: the fast way for data in memory.

        Args:
            batch: one tensor for each of the `TensorDataset`, or the collated samples.
            generator: on the CPU, seeded by the place in the data.
        """
        return batch

    def apply(self, name: str, value: Any) -> None:
        """Bring one hyper-parameter into force. Override it for names of your own, and call this for the rest.

        `momentum` is the first beta of an optimizer of Adam's kind.

        Raises:
            ValueError: if neither the data nor the optimizer knows the name, or the batch size is not positive.
        """
        if name in ("bs", "batch_size"):
            self.batch_size = _positive(name, value)
        elif name != "optimizer":
            for group in self.optimizer.param_groups:
                self._apply_to(group, name, value)

    # What the runner calls ------------------------------------------------------------------------------------------

    def setup(self, hp: dict[str, Any]) -> None:
        """See `Trainer.setup`. A new `optimizer` starts with no memory of the old one."""
        kept = hasattr(self, "optimizer") and hp.get("optimizer") in (None, self.hp.get("optimizer"))
        self.hp |= hp
        if not kept:
            self.optimizer = self.make_optimizer(self.hp)
        for name, value in (hp if kept else self.hp).items():
            self.apply(name, value)

    def train(self) -> None:
        """See `Trainer.train`. The last batch of an epoch has what is left, however little."""
        for _ in range(self._batches_per_step or self._batches_left()):
            self.train_batch(self._next_batch())

    def evaluate(self) -> dict[str, float]:
        """See `Trainer.evaluate`. Every module is in evaluation mode here, and in its own mode again afterwards."""
        with _evaluating(self.model), torch.no_grad():
            return self._mean_over(self._valid_data)

    def state_dict(self) -> dict[str, Any]:
        """See `Trainer.state_dict`. A copy in host memory: training on does not change it."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epoch": self.epoch,
            "offset": self.offset,
        }
        copied: dict[str, Any] = _map_tensors(state, lambda tensor: tensor.detach().to("cpu", copy=True))
        return copied

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Trainer.load_state_dict`."""
        self.model.load_state_dict(state["model"])
        # The optimizer would go on working in the tensors it is given, hence the copy.
        self.optimizer.load_state_dict(_map_tensors(state["optimizer"], Tensor.clone))
        self.epoch, self.offset = state["epoch"], state["offset"]

    # The data -------------------------------------------------------------------------------------------------------

    def _next_batch(self) -> Any:
        indices = self._epoch_order()[self.offset : self.offset + self.batch_size]
        batch = self._fetch(self._train_data, indices, self._augmented)
        batch = self.transform_batch(batch, self._generator("batch", self.epoch, self.offset))
        self._advance(len(indices))
        return batch

    def _advance(self, samples: int) -> None:
        self.offset += samples
        if self.offset >= len(self._train_data):
            self.epoch, self.offset = self.epoch + 1, 0

    def _batches_left(self) -> int:
        return -(-(len(self._train_data) - self.offset) // self.batch_size)

    def _epoch_order(self) -> Tensor:
        if self._order is None or self._order[0] != self.epoch:
            generator = self._generator("order", self.epoch)
            self._order = self.epoch, torch.randperm(len(self._train_data), generator=generator)
        return self._order[1]

    def _generator(self, purpose: str, *place: int) -> Generator:
        """A generator of its own for each purpose and place; none of them has a state to save."""
        digest = blake2b(repr((self.seed, purpose, *place)).encode(), digest_size=4).digest()
        return Generator().manual_seed(int.from_bytes(digest))

    def _augmented(self, index: int, sample: Any) -> Any:
        return self.transform(sample, self._generator("sample", self.epoch, index))

    def _fetch(
        self, data: TensorDataset | Samples, indices: Tensor, change: Callable[[int, Any], Any] | None = None
    ) -> Any:
        if isinstance(data, TensorDataset):
            here = indices.to(self.device)
            return [tensor.index_select(0, here) for tensor in data.tensors]
        samples = [change(i, data[i]) if change else data[i] for i in indices.tolist()]
        return _map_tensors(default_collate(samples), lambda tensor: tensor.to(self.device))

    def _mean_over(self, data: TensorDataset | Samples) -> dict[str, float]:
        totals: defaultdict[str, float] = defaultdict(float)
        for start in range(0, len(data), self.eval_batch_size):
            indices = torch.arange(start, min(start + self.eval_batch_size, len(data)))
            for name, mean in self.measure(self._fetch(data, indices)).items():
                totals[name] += float(mean) * len(indices)
        return {name: total / len(data) for name, total in totals.items()}

    def _apply_to(self, group: dict[str, Any], name: str, value: Any) -> None:
        if name == "momentum" and "betas" in group:
            group["betas"] = (value, group["betas"][1])
        elif name in group and name != "params":
            group[name] = value
        else:
            known = ", ".join(key for key in group if key != "params")
            raise ValueError(f"hyper-parameter {name!r} is none of the optimizer's ({known}); override `apply` for it")


def _on_device(data: TensorDataset | Samples, device: str) -> TensorDataset | Samples:
    if isinstance(data, TensorDataset):
        return TensorDataset(*(tensor.to(device) for tensor in data.tensors))
    return data


def _map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nest of dicts and lists (a tuple becomes a list, as in JSON) with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_tensors(item, change) for item in value]
    return value


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while; a part that was frozen in it before stays so."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _positive(name: str, value: Any) -> int:
    if value != int(value) or value < 1:
        raise ValueError(f"{name} must be a positive whole number, not {value!r}")
    return int(value)
