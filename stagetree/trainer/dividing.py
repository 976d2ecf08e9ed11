"""Learning by shards where each rank has only its part of every parameter: FSDP2, with the sums of the tree.

Every rank has each `world`-th shard, so the shards that all ranks are at are neighbours: torch reduces and
scatters the sum of a branch of the tree after each, and the branches are added up, of which each rank has its own rows
only. So any number of ranks has the bits of one, as in `stagetree.trainer.sharding`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.optim import Optimizer

from stagetree.trainer import generators
from stagetree.trainer.order import BatchSpan, seed_of
from stagetree.trainer.parted import divided_like, is_divided, local
from stagetree.trainer.sharding import ModelBuffers, Sharding, noting_memory, shards_in
from stagetree.trainer.summing import TreeSum, as_bytes

NEEDED = ("set_custom_reduce_scatter", "set_gradient_divide_factor", "set_force_sum_reduction_for_comms")
"""What torch must have for sums in an order of ours."""


def fully_shard_blocks(model: nn.Module, mesh: Any) -> None:
    """Divide the parameters of each block of a model, and of the rest: a block is an item of an `nn.ModuleList`."""
    from torch.distributed.fsdp import fully_shard

    lists = [each for each in model.modules() if isinstance(each, nn.ModuleList)]
    for block in [block for each in reversed(lists) for block in each]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


class TreeReduceScatter:
    """In the place of torch's: each rank is sent its chunk of all ranks' gradients, and adds up in the tree's order."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any = None, async_op: bool = False
    ) -> None:
        received = torch.empty_like(input_tensor)
        dist.all_to_all_single(as_bytes(received), as_bytes(input_tensor), group=group)
        chunks = list(received.view(group.size(), -1))
        while len(chunks) > 1:
            chunks = [one + other for one, other in zip(chunks[::2], chunks[1::2], strict=True)]
        output_tensor.copy_(chunks[0])


class DividedSharding(Sharding):
    """As `Sharding`, with parameters that are divided among the ranks, as are gradients and the optimizer's state."""

    is_divided = True
    comm: type | None = TreeReduceScatter
    """What reduces and scatters gradients; None for torch's own."""

    def own_shards(self) -> range:
        """Every `world`-th one, from the rank's number on."""
        self.ranks.own(self.shards)
        return range(self.ranks.rank, self.shards, self.ranks.world)

    def prepare(
        self,
        model: nn.Module,
        loss: Callable[[Any], Any],
        shard: Callable[[nn.Module, Any], None],
        replicate: Callable[[nn.Module], nn.Module],
    ) -> None:
        """Divide a model's parameters by the user's function. Raises ValueError."""
        from torch.distributed.fsdp import FSDPModule

        missing = [name for name in NEEDED if not hasattr(FSDPModule, name)]
        if missing:
            raise ValueError(f"parallel: fsdp needs a newer torch than {torch.__version__}, which has no {missing[0]}")
        shard(model, self.ranks.mesh(self._device))
        divided = [each for each in model.modules() if isinstance(each, FSDPModule)]
        if not divided:
            raise ValueError("shard(model, mesh) must call fully_shard on the model, and has not")
        for module in divided:
            if self.comm is not None:
                module.set_custom_reduce_scatter(self.comm())
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)

    def divide_again(self, model: nn.Module) -> None:
        """Each rank has its part only, where all were gathered to measure."""
        for module in model.modules():
            if hasattr(module, "reshard"):
                module.reshard()  # type: ignore[operator]

    def learn(
        self, whole: BatchSpan, model: nn.Module, optimizer: Optimizer, part: Callable[[BatchSpan], None]
    ) -> None:
        self.refuse_small(whole, f"{self.shards} shards")
        others = (each for group in optimizer.param_groups for each in group["params"])
        parameters = list(dict.fromkeys(each for each in (*model.parameters(), *others) if each.requires_grad))
        buffers, tree, present = ModelBuffers(model), TreeSum(), [False] * len(parameters)
        self.means.samples, self.means.is_counted = len(whole.indices), False
        before, spans = generators.mark(self._device), shards_in(whole, self.shards)
        for shard in self.own_shards():
            tree.add(self._branch(whole, shard, spans[shard], parameters, buffers, part, present))
        generators.go_back(before, self._device)
        self._put(tree.take(), parameters, present, buffers)
        self.ranks.broadcast(buffers.whole_numbers(), 0)
        self.means.forget()

    def _branch(
        self,
        whole: BatchSpan,
        shard: int,
        span: BatchSpan,
        parameters: list[nn.Parameter],
        buffers: ModelBuffers,
        part: Callable[[BatchSpan], None],
        present: list[bool],
    ) -> list[Tensor]:
        """What the shards that all ranks are at add up to: the gradients of this rank's rows, and all of the rest."""
        self.means.count = torch.zeros((), device=self._device)
        for parameter in parameters:
            parameter.grad = None
        buffers.put_back()
        generators.seed(seed_of(self._seed, "shard", whole.epoch, whole.offset, shard))
        with noting_memory(span, self.shards):
            part(span)
        for number, parameter in enumerate(parameters):
            present[number] |= parameter.grad is not None
        gradients = [local(torch.zeros_like(each) if each.grad is None else each.grad) for each in parameters]
        for parameter in parameters:
            parameter.grad = None
        rest = [grad for grad, each in zip(gradients, parameters, strict=True) if not is_divided(each)]
        share = len(span.indices) / len(whole.indices)
        rest += [*buffers.deltas(share), self.means.count]
        self.ranks.across(rest)
        return [*gradients, *rest[len(rest) - len(buffers.floats) - 1 :]]

    def _put(
        self, total: list[Tensor], parameters: list[nn.Parameter], present: list[bool], buffers: ModelBuffers
    ) -> None:
        gradients, changes, count = total[: len(parameters)], total[len(parameters) : -1], total[-1]
        for parameter, gradient, is_there in zip(parameters, gradients, present, strict=True):
            if is_there:
                if self.means.is_counted:
                    gradient.mul_((self.means.samples / count.clamp(min=1)).to(gradient.dtype))
                parameter.grad = divided_like(gradient, parameter)
        buffers.finish(dict(zip(buffers.floats, changes, strict=True)))
