"""The meanings of a study's `parallel`: how several ranks learn from a batch.

With sums in the order of the tree, any number of ranks gives the bits of one: `tree`, in `sharding`, and `fsdp`, where
each rank has only its part of every parameter (FSDP2). For `fsdp`, each rank has every `world`-th shard, so that the
ranks' current shards are neighbours: torch reduces and scatters the sum of a branch of the tree after each, and each
rank adds up its own rows of the branches.

With torch's own sums, `ddp:4` or `fsdp:4`, the bits depend on the number of ranks, which is therefore part of the plan.
Each rank has one part of a batch, as one shard, with a seed of its own; the loss is the mean over the whole batch, as
with shards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.optim import Optimizer

from stagetree.trainer import generators
from stagetree.trainer.data_order import Batching, BatchSpan, parts, seed_of
from stagetree.trainer.divided_tensors import is_divided
from stagetree.trainer.ranks.group import here
from stagetree.trainer.ranks.sharding import (
    BatchInShards,
    Sharding,
    Sums,
    TrainerFunctions,
    explain_memory,
    shards_in,
    shards_of,
)
from stagetree.trainer.ranks.summing import TreeSum, byte_view, tree_sum

NEEDED = ("set_custom_reduce_scatter", "set_gradient_divide_factor", "set_force_sum_reduction_for_comms")
"""Methods that torch must have to sum in the order of the tree."""


def fully_shard_blocks(model: nn.Module, mesh: Any) -> None:
    """Divide the parameters of each block of a model, and of the rest: a block is an item of an `nn.ModuleList`."""
    from torch.distributed.fsdp import fully_shard

    lists = [each for each in model.modules() if isinstance(each, nn.ModuleList)]
    for block in [block for each in reversed(lists) for block in each]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


class TreeReduceScatter:
    """Replaces torch's reduce-scatter: each rank gets its chunk of all ranks' gradients, and adds them in tree
    order."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any = None, async_op: bool = False
    ) -> None:
        received = torch.empty_like(input_tensor)
        dist.all_to_all_single(byte_view(received), byte_view(input_tensor), group=group)
        output_tensor.copy_(tree_sum(received, group.size()))


class DividedSharding(Sharding):
    """As `Sharding`, with parameters, gradients and optimizer state divided among the ranks."""

    is_divided = True
    comm: type | None = TreeReduceScatter
    """The reduce-scatter of gradients; None for torch's own."""

    _divided: Sequence[Any] = ()
    """The modules that `fully_shard` was called on."""

    def own_shards(self) -> range:
        """Every `world`-th shard, from the rank's number on."""
        self.ranks.own(self.shards)
        return range(self.ranks.rank, self.shards, self.ranks.world)

    def prepare(self, model: nn.Module, functions: TrainerFunctions) -> None:
        """Divide a model's parameters by the user's function. Raises ValueError."""
        from torch.distributed.fsdp import FSDPModule

        missing = [name for name in NEEDED if not hasattr(FSDPModule, name)]
        if missing:
            raise ValueError(f"parallel: fsdp needs a newer torch than {torch.__version__}, which has no {missing[0]}")
        functions.shard(model, self.ranks.mesh(self._device))
        divided = [each for each in model.modules() if isinstance(each, FSDPModule)]
        if not divided:
            raise ValueError("shard(model, mesh) must call fully_shard on the model, and has not")
        self._divided = divided
        for module in divided:
            if self.comm is not None:
                module.set_custom_reduce_scatter(self.comm())
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)

    def divide_again(self, model: nn.Module) -> None:
        """Free the parameters that were gathered for evaluation."""
        for module in model.modules():
            if hasattr(module, "reshard"):
                module.reshard()  # type: ignore[operator]

    def passes(self, whole: BatchSpan, shard: BatchSpan, size: int | None) -> list[BatchSpan]:
        """The passes of a shard, equally many for all shards, since all ranks must gather parameters equally often.

        If another shard needs a pass more for its last sample, the last pass here is halved. Raises ValueError if that
        pass has one sample.
        """
        passes, most = list(parts(shard, size)), -(-len(whole.indices) // self.shards)
        if size is None or len(passes) == -(-most // size):
            return passes
        if size == 1:
            raise ValueError(
                f"a batch of {len(whole.indices)} samples makes {self.shards} shards of different sizes, which cannot "
                "have equally many passes of one sample: give micro_batch_size 2, or another batch size"
            )
        *passes, last = passes
        return [*passes, *parts(last, -(-len(last.indices) // 2))]

    def begin_pass(self, *, is_last: bool) -> None:
        """Accumulate local gradients until the last pass, so that the order of the sums does not depend on the
        ranks."""
        for module in self._divided:
            module.set_requires_gradient_sync(is_last, recurse=False)

    def learn(
        self, whole: BatchSpan, model: nn.Module, optimizer: Optimizer, part: Callable[[BatchSpan], None]
    ) -> None:
        self.refuse_small(whole, f"{self.shards} shards")
        super().learn(whole, model, optimizer, part)

    def _overlap(self, *_: Any, **__: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def _add(self, leaf: list[Tensor], tree: TreeSum, batch: BatchInShards, *, is_last: bool) -> None:
        """Add the ranks' current shards. torch has already summed the gradients of divided parameters, of which each
        rank has its rows."""
        gradients, rest = leaf[: len(batch.parameters)], leaf[len(batch.parameters) :]
        pairs = zip(gradients, batch.parameters, strict=True)
        self.ranks.across([grad for grad, each in pairs if not is_divided(each)] + rest)  # in place
        tree.add(leaf)

    def _sum_across_ranks(self, mine: list[Tensor], batch: BatchInShards) -> Sums:
        """The sums: all ranks have taken part in every branch, so nothing is left to add."""
        count, names = len(batch.parameters), batch.buffers.floats
        changes = dict(zip(names, mine[count:-1], strict=True))
        return Sums(mine[:count], batch.present, changes, mine[-1] if self.means.is_counted else None)


class StockDivided(DividedSharding):
    """Plain FSDP2."""

    comm, is_fixed = None, True


class _Loss(nn.Module):
    """The loss as a module that DDP can wrap, so that the trainer's `model` stays unwrapped."""

    def __init__(self, model: nn.Module, loss: Callable[[Any], Any]) -> None:
        super().__init__()
        self.model, self._loss = model, loss

    def forward(self, batch: Any) -> Any:
        return self._loss(batch)


class ReplicatedSharding(Sharding):
    """Plain DDP: each rank has the model, and torch sums the gradients while they are computed.

    After its first backward pass, DDP rebuilds its buckets in the order in which gradients arrived, and sums in another
    order from then on. Training that resumes from a state must not start with such a pass, so it makes one before.
    """

    is_fixed = True

    def __init__(self, shards: int, seed: int, device: str) -> None:
        super().__init__(shards, seed, device)
        self._wrapped: nn.parallel.DistributedDataParallel | None = None
        self.is_warm = False

    def prepare(self, model: nn.Module, functions: TrainerFunctions) -> None:
        self._wrapped, self.is_warm = functions.replicate(_Loss(model, functions.loss)), False

    def begin_pass(self, *, is_last: bool) -> None:
        """As in `no_sync`: passes before the last one add to the rank's own gradients, so ranks may have different
        numbers."""
        assert self._wrapped is not None
        self._wrapped.require_backward_grad_sync = is_last

    def loss_of(self, batch: Any, loss: Callable[[Any], Any]) -> Any:
        assert self._wrapped is not None
        return self._wrapped(batch)

    def learn(
        self, whole: BatchSpan, model: nn.Module, optimizer: Optimizer, part: Callable[[BatchSpan], None]
    ) -> None:
        self.refuse_small(whole, f"{self.shards} ranks")
        parameters = {id(each) for each in model.parameters()}
        if any(id(each) not in parameters for group in optimizer.param_groups for each in group["params"]):
            raise ValueError("with parallel: ddp, all parameters of the optimizer must be the model's")
        before, rank = generators.state(self._device), self.ranks.rank
        self.means.samples, self.means.is_counted = len(whole.indices), False
        generators.seed(seed_of(self._seed, "shard", whole.epoch, whole.offset, rank))
        with explain_memory(shards_in(whole, self.shards)[rank], self.shards):
            part(shards_in(whole, self.shards)[rank])
        generators.restore(before, self._device)
        factor: Any = self.shards  # undo DDP's division
        if self.means.is_counted:
            (count,) = self.ranks.across([self.means.count.reshape(1)])
            factor = factor * self.means.samples / count.clamp(min=1)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
        self.ranks.broadcast([each.detach() for each in model.buffers()])  # as DDP does before each pass
        self.means.forget()
        self.is_warm = True


FREE: dict[str, type[Sharding]] = {"tree": Sharding, "fsdp": DividedSharding}
"""Modes with sums in tree order: any number of ranks gives the same bits."""


def sharding_of(batching: Batching, seed: int, device: str) -> Sharding | None:
    """How a trainer learns from a batch, by its own setting or else the study's; None for whole batches.

    Raises ValueError.
    """
    kind, _, number = here().parallel.partition(":")
    if number:
        return _fixed_sharding(kind, int(number), batching, seed, device)
    parallel = batching.parallel or kind
    if parallel not in FREE:
        raise ValueError(
            f"parallel must be {' or '.join(FREE)} in a trainer, not {parallel!r}: the study chooses ways whose "
            "results depend on the number of ranks"
        )
    if not (shards := shards_of(batching.shards)):
        return None
    return FREE[parallel](shards, seed, device)


def _fixed_sharding(kind: str, number: int, batching: Batching, seed: int, device: str) -> Sharding:
    if here().world != number:
        raise ValueError(f"{number} ranks are part of the study's results, with parallel: {kind}, not {here().world}")
    unsupported = {"shards": batching.shards, "parallel": batching.parallel}
    for name in [name for name, value in unsupported.items() if value is not None]:
        raise ValueError(f"the study says parallel: {kind}, which needs a trainer without {name}")
    return {"ddp": ReplicatedSharding, "fsdp": StockDivided}[kind](number, seed, device)
