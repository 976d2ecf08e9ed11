"""A trainer's model: its construction, its division among devices, and loading a state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from stagetree.trainer import generators
from stagetree.trainer.data import DataTrainer
from stagetree.trainer.data_order import BatchSpan
from stagetree.trainer.divided_tensors import Parted, is_divided, local, reshard_like, whole_of
from stagetree.trainer.ranks.parallel import DividedSharding, ReplicatedSharding, fully_shard_blocks
from stagetree.trainer.ranks.sharding import TrainerFunctions
from stagetree.trainer.tensors import Average, Mean, copy_state
from stagetree.trainer.values import RecordedValues


class ModelTrainer(DataTrainer):
    """The model part of `stagetree.TorchTrainer`, which describes arguments, methods and attributes."""

    model: nn.Module
    optimizer: Optimizer
    hp: dict[str, Any]
    _is_driven = False  # set by the runner; False in the hands of a user

    # To be overridden -------------------------------------------------------------------------------------------------

    def build(self, hp: dict[str, Any]) -> nn.Module:
        """Build the model if `__init__` was given none. Hyper-parameters that are read here cannot change later.

        The global generators are seeded with the study's seed, so that the model is the same whenever it is built.
        """
        raise ValueError(f"{type(self).__name__} gives no model to super().__init__, and has no method `build`")

    def shard(self, model: nn.Module, mesh: Any) -> None:
        """Divide the parameters of the model among the devices of `mesh`, by `torch.distributed.fsdp.fully_shard`.

        Called for `parallel: fsdp`, once the model is on the device. By default, each item of an `nn.ModuleList` is a
        unit whose parameters are gathered at once, and so is the rest. Override it for other units.
        """
        fully_shard_blocks(model, mesh)

    def replicate(self, loss: nn.Module) -> DistributedDataParallel:
        """Wrap the loss, a module with the model inside, in torch's DDP; called for `parallel: ddp`.

        Override it for other arguments of `DistributedDataParallel`, such as `find_unused_parameters`.
        """
        return DistributedDataParallel(loss)

    @abstractmethod
    def loss(self, batch: Any) -> Mean:
        """The scalar to minimize: the mean over the samples of one batch.

        Return a mean over something else, such as tokens, as (sum, count): then `micro_batch_size` does not change it.
        """

    # The model ------------------------------------------------------------------------------------------------------

    def _begin_with(self, model: nn.Module | None, average_decay: float | None, compile: bool) -> None:
        self._average_decay, self._compile, self._is_without_state = average_decay, compile, False
        self._shape: RecordedValues | None = None
        if model is not None:
            self._take(model)

    def _take(self, model: nn.Module) -> None:
        self.model = model.to(self.device)
        if self._sharding:
            functions = TrainerFunctions(lambda batch: self.loss(batch), self.shard, self.replicate)
            self._sharding.prepare(self.model, functions)
        if self._compile:
            self.model.compile()
        self._average = None if self._average_decay is None else Average(self.model, self._average_decay)
        if self._average:
            self.model.register_load_state_dict_post_hook(_Loaded(self._follow_loaded))  # type: ignore[no-untyped-call]

    def _follow_loaded(self) -> None:
        """Handle weights that were loaded into the model. If a user did so, the average restarts from them.

        In a run, a trainer may load other weights temporarily to evaluate them: then only the first ones count.
        """
        if self._average and (self._average.is_new or not self._is_driven):
            self._average.restart()

    def _keep_or_build(self) -> bool:
        """Whether the model exists with the shape that the hyper-parameters give it; otherwise builds it."""
        if hasattr(self, "model") and (self._shape is None or self._shape.fits(self.hp)):
            return True
        self._is_without_state = hasattr(self, "model")
        self._shape = RecordedValues(self.hp)
        with generators.preserve(self.device):
            generators.seed(self.seed)
            self._take(self.build(self._shape))
        return False

    def _load_model(self, saved: Mapping[str, Any]) -> None:
        load_model(self.model, saved)

    def _shaping(self) -> list[str]:
        return sorted(self._shape.read) if self._shape else []

    @abstractmethod
    def _learn(self, whole: BatchSpan) -> None:
        """Compute the gradient of a batch."""

    def _warm_up(self) -> None:
        """Make DDP's first pass before a state is loaded: it sums in another order than all later ones."""
        if isinstance(self._sharding, ReplicatedSharding) and not self._sharding.is_warm:
            self._learn(self._next_batch())
            self.optimizer.zero_grad()

    def _means_of_model(self) -> dict[str, float]:
        """The metrics; afterwards each rank has only its own part of the parameters again."""
        try:
            return self._means()
        finally:
            if isinstance(self._sharding, DividedSharding):
                self._sharding.divide_again(self.model)


class _Loaded:
    """A hook for when a model has loaded a state dict. It is dropped from copies and pickles of the model."""

    def __init__(self, act: Callable[[], None] | None = None) -> None:
        self._act = act

    def __call__(self, model: nn.Module, keys: Any) -> None:
        if self._act:
            self._act()

    def __reduce__(self) -> tuple[type[_Loaded], tuple[()]]:
        return _Loaded, ()


def load_model(model: nn.Module, saved: Mapping[str, Any], is_whole: bool = True) -> None:
    """As `load_state_dict`, from any number of ranks into a model that is divided in any way.

    is_whole: otherwise missing names keep their values.
    """
    there = model.state_dict()
    divided = {name: _divide_value(value, there.get(name)) for name, value in saved.items()}
    model.load_state_dict(divided, strict=is_whole)


def load_optimizer(optimizer: Optimizer, saved: Mapping[str, Any], device: str) -> None:
    """As `load_state_dict`; a tensor with a parameter's shape is divided like the parameter."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    state = {
        number: {name: _divide_value(value, parameters[number]) for name, value in values.items()}
        for number, values in saved["state"].items()
    }
    optimizer.load_state_dict(copy_state({**saved, "state": state}, device))


def _divide_value(value: Any, tensor: Any) -> Any:
    """A saved value, divided like a tensor of its shape; whole if there is none."""
    if not isinstance(value, Tensor | Parted):
        return value
    is_alike = isinstance(tensor, Tensor) and tuple(value.shape) == tuple(tensor.shape)
    return reshard_like(value, tensor if is_alike else torch.empty(0))


def clip_grad_norm(parameters: Iterable[nn.Parameter], longest: float) -> None:
    """As torch's. The norm of divided gradients is computed as in one process, so that the bits are the same."""
    having = [each for each in parameters if each.grad is not None]
    if not any(map(is_divided, having)):
        nn.utils.clip_grad_norm_(having, longest)
        return
    gradients = [each.grad for each in having if each.grad is not None]
    lengths = [torch.linalg.vector_norm(whole_of(each)) for each in gradients]  # gathers one gradient at a time
    factor = torch.clamp(longest / (torch.linalg.vector_norm(torch.stack(lengths)) + 1e-6), max=1.0)
    for each in gradients:
        local(each).mul_(factor)
