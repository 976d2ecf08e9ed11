"""Several ranks by torch's own sums: DDP, and FSDP2. Their order depends on the number of ranks, and so do the bits.

So that number is part of the plan: `ddp:4` or `fsdp:4`. Each rank has one part of a batch, as one shard; its draws
begin at a seed of their own, and the loss is the mean over all of the batch, as with shards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from stagetree.trainer import generators
from stagetree.trainer.dividing import DividedSharding
from stagetree.trainer.order import Batching, BatchSpan, seed_of
from stagetree.trainer.ranks import here
from stagetree.trainer.sharding import Sharding, noting_memory, shards_in, shards_of

FREE: dict[str, type[Sharding]] = {"tree": Sharding, "fsdp": DividedSharding}
"""By sums in the order of a tree: any number of ranks has the same bits."""


def sharding_of(batching: Batching, seed: int, device: str) -> Sharding | None:
    """How a trainer learns from a batch: by its own word, or else by the study's; None for all of it at once.

    Raises ValueError.
    """
    kind, _, number = here().parallel.partition(":")
    if number:
        return _fixed(kind, int(number), batching, seed, device)
    parallel = batching.parallel or kind
    if parallel not in FREE:
        raise ValueError(
            f"parallel must be {' or '.join(FREE)} in a trainer, not {parallel!r}: what the number of ranks is part of "
            "is said in the study"
        )
    if not (shards := shards_of(batching.shards)):
        return None
    return FREE[parallel](shards, seed, device)


def _fixed(kind: str, number: int, batching: Batching, seed: int, device: str) -> Sharding:
    if here().world != number:
        raise ValueError(f"{number} ranks are part of the study's results, with parallel: {kind}, not {here().world}")
    unsupported = {"shards": batching.shards, "parallel": batching.parallel}
    for name in [name for name, value in unsupported.items() if value is not None]:
        raise ValueError(f"the study says parallel: {kind}, which needs a trainer without {name}")
    return {"ddp": ReplicatedSharding, "fsdp": StockDivided}[kind](number, seed, device)


class StockDivided(DividedSharding):
    """FSDP2 as torch has it."""

    comm, is_fixed = None, True


class _Loss(nn.Module):
    """The loss as a module, which DDP can wrap: the trainer's `model` is not wrapped."""

    def __init__(self, model: nn.Module, loss: Callable[[Any], Any]) -> None:
        super().__init__()
        self.model, self._loss = model, loss

    def forward(self, batch: Any) -> Any:
        return self._loss(batch)


class ReplicatedSharding(Sharding):
    """DDP as torch has it: each rank has the model, and torch sums the gradients while they are computed.

    After its first backward pass, DDP puts gradients together in the order in which they came, and sums them in another
    order from then on. Training that goes on from a state must not begin anew with that: it makes a pass before.
    """

    is_fixed = True

    def __init__(self, shards: int, seed: int, device: str) -> None:
        super().__init__(shards, seed, device)
        self._wrapped: nn.parallel.DistributedDataParallel | None = None
        self.is_warm = False

    def prepare(
        self,
        model: nn.Module,
        loss: Callable[[Any], Any],
        shard: Callable[[nn.Module, Any], None],
        replicate: Callable[[nn.Module], nn.parallel.DistributedDataParallel],
    ) -> None:
        self._wrapped, self.is_warm = replicate(_Loss(model, loss)), False

    def begin_pass(self, *, is_last: bool) -> None:
        """As in `no_sync`: passes before the last one add to the rank's own gradients, so each may have its number."""
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
        before, rank = generators.mark(self._device), self.ranks.rank
        self.means.samples, self.means.is_counted = len(whole.indices), False
        generators.seed(seed_of(self._seed, "shard", whole.epoch, whole.offset, rank))
        with noting_memory(shards_in(whole, self.shards)[rank], self.shards):
            part(shards_in(whole, self.shards)[rank])
        generators.go_back(before, self._device)
        factor: Any = self.shards  # DDP has divided by it
        if self.means.is_counted:
            (count,) = self.ranks.across([self.means.count.reshape(1)])
            factor = factor * self.means.samples / count.clamp(min=1)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
        self.ranks.broadcast([each.detach() for each in model.buffers()])  # as DDP does before each pass
        self.means.forget()
        self.is_warm = True
