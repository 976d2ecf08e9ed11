"""A trainer's one model: where it comes from, how it is divided among devices, and how a state is put into it."""

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
from stagetree.trainer.divided_tensors import Parted, is_divided, like, local, whole_of
from stagetree.trainer.ranks.parallel import DividedSharding, ReplicatedSharding, fully_shard_blocks
from stagetree.trainer.tensors import Average, Mean, owned
from stagetree.trainer.values import Recorded


class ModelTrainer(DataTrainer):
    """What `stagetree.TorchTrainer` knows about its model; arguments, methods and attributes are described there."""

    model: nn.Module
    optimizer: Optimizer
    hp: dict[str, Any]
    _is_driven = False  # by the runner, which sets it; else a user has made it, and calls it

    # What a subclass says -------------------------------------------------------------------------------------------

    def build(self, hp: dict[str, Any]) -> nn.Module:
        """Build the model, if `__init__` was given none. Hyper-parameters that are read here cannot change later.

        The global generators begin at the seed here, so that the model is the same whenever it is built.
        """
        raise ValueError(f"{type(self).__name__} gives no model to super().__init__, and has no method `build`")

    def shard(self, model: nn.Module, mesh: Any) -> None:
        """Divide the parameters of the model among the devices of `mesh`, by `torch.distributed.fsdp.fully_shard`.

        Called for `parallel: fsdp`, once the model is on the device. Here, each item of an `nn.ModuleList` is a unit
        whose parameters are gathered at once, and so is the rest. Override it for other units.
        """
        fully_shard_blocks(model, mesh)

    def replicate(self, loss: nn.Module) -> DistributedDataParallel:
        """Wrap the loss, a module with the model inside, in torch's DDP; called for `parallel: ddp`.

        Override it for other arguments of `DistributedDataParallel`, such as `find_unused_parameters`.
        """
        return DistributedDataParallel(loss)

    @abstractmethod
    def loss(self, batch: Any) -> Mean:
        """The scalar to minimise: the mean over the samples of one batch.

        A mean over something else, such as tokens, is given as (sum, count): then `micro_batch_size` changes nothing.
        """

    # The model ------------------------------------------------------------------------------------------------------

    def _begin_with(self, model: nn.Module | None, average_decay: float | None, compile: bool) -> None:
        self._average_decay, self._compile, self._is_without_state = average_decay, compile, False
        self._shape: Recorded | None = None
        if model is not None:
            self._take(model)

    def _take(self, model: nn.Module) -> None:
        self.model = model.to(self.device)
        if self._sharding:
            self._sharding.prepare(self.model, lambda batch: self.loss(batch), self.shard, self.replicate)
        if self._compile:
            self.model.compile()
        self._average = None if self._average_decay is None else Average(self.model, self._average_decay)
        if self._average:
            self.model.register_load_state_dict_post_hook(_Loaded(self._follow_loaded))  # type: ignore[no-untyped-call]

    def _follow_loaded(self) -> None:
        """Weights were put into the model. Where a user did that by hand, they are what is averaged, and measured.

        In a run, a trainer may load weights for a while, to measure others: then only the first ones count.
        """
        if self._average and (self._average.is_new or not self._is_driven):
            self._average.restart()

    def _keep_or_build(self) -> bool:
        """Whether the model is there, in the shape that the hyper-parameters give it; else it is built."""
        if hasattr(self, "model") and (self._shape is None or self._shape.fits(self.hp)):
            return True
        self._is_without_state = hasattr(self, "model")
        self._shape = Recorded(self.hp)
        with generators.kept(self.device):
            generators.seed(self.seed)
            self._take(self.build(self._shape))
        return False

    def _load_model(self, saved: Mapping[str, Any]) -> None:
        load_model(self.model, saved)

    def _shaping(self) -> list[str]:
        return sorted(self._shape.read) if self._shape else []

    @abstractmethod
    def _learn(self, whole: BatchSpan) -> None:
        """Have the gradient of a batch in the parameters."""

    def _warm_up(self) -> None:
        """Before a state is loaded, which undoes it: have DDP sum in the order in which it sums from the second on."""
        if isinstance(self._sharding, ReplicatedSharding) and not self._sharding.is_warm:
            self._learn(self._next_batch())
            self.optimizer.zero_grad()

    def _means_of_model(self) -> dict[str, float]:
        """The metrics, after which each rank has its own part of the parameters again."""
        try:
            return self._means()
        finally:
            if isinstance(self._sharding, DividedSharding):
                self._sharding.divide_again(self.model)


class _Loaded:
    """What a model calls when it has loaded a state dict. A copy of the model, or one in a file, calls nothing."""

    def __init__(self, act: Callable[[], None] | None = None) -> None:
        self._act = act

    def __call__(self, model: nn.Module, keys: Any) -> None:
        if self._act:
            self._act()

    def __reduce__(self) -> tuple[type[_Loaded], tuple[()]]:
        return _Loaded, ()


def load_model(model: nn.Module, saved: Mapping[str, Any], is_whole: bool = True) -> None:
    """As `load_state_dict`, of whatever number of ranks has saved it, in the way in which the model is divided.

    is_whole: else what was not saved stays as it is.
    """
    there = model.state_dict()
    model.load_state_dict({name: _placed(value, there.get(name)) for name, value in saved.items()}, strict=is_whole)


def load_optimizer(optimizer: Optimizer, saved: Mapping[str, Any], device: str) -> None:
    """As `load_state_dict`; a tensor of a parameter's shape is divided as the parameter."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    state = {
        number: {name: _placed(value, parameters[number]) for name, value in values.items()}
        for number, values in saved["state"].items()
    }
    optimizer.load_state_dict(owned({**saved, "state": state}, device))


def _placed(value: Any, tensor: Any) -> Any:
    """A saved value, divided as a tensor of this shape is; in this process alone, where there is none."""
    if not isinstance(value, Tensor | Parted):
        return value
    is_alike = isinstance(tensor, Tensor) and tuple(value.shape) == tuple(tensor.shape)
    return like(value, tensor if is_alike else torch.empty(0))


def clip_grad_norm(parameters: Iterable[nn.Parameter], longest: float) -> None:
    """As torch's. The length of divided gradients is measured as one process has it, so the bits are the same."""
    having = [each for each in parameters if each.grad is not None]
    if not any(map(is_divided, having)):
        nn.utils.clip_grad_norm_(having, longest)
        return
    gradients = [each.grad for each in having if each.grad is not None]
    lengths = [torch.linalg.vector_norm(whole_of(each)) for each in gradients]  # one after the other is whole here
    factor = torch.clamp(longest / (torch.linalg.vector_norm(torch.stack(lengths)) + 1e-6), max=1.0)
    for each in gradients:
        local(each).mul_(factor)
