"""Learning from a batch by shards, so that any number of ranks learns the same, to the bit.

Each shard is learned from as if it were alone: the generators begin at a seed of its own, and the model's buffers are
as they were before the batch. Then the gradients, and the changes of the buffers, are added up in the order of the
tree. A buffer of whole numbers, such as how many batches were seen, becomes as the first shard left it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stagetree.trainer import generators
from stagetree.trainer.order import BatchSpan, seed_of
from stagetree.trainer.ranks import Ranks, cut, here, is_power_of_two
from stagetree.trainer.summing import EarlySums, TreeSum
from stagetree.trainer.tensors import ShardMeans

OVERRIDDEN = ("train_batch", "accumulate")
"""Methods of `TorchTrainer` in whose place a sharded trainer does its own."""

ACROSS = (nn.SyncBatchNorm, nn.DataParallel, nn.parallel.DistributedDataParallel)
"""Modules that look at what other processes compute, so that the number of ranks changes the result."""


def shards_of(given: int | None) -> int:
    """In how many parts a trainer has its batches cut: its own number, or else that of the study; 0 for whole ones.

    Raises ValueError.
    """
    ranks = here()
    shards = ranks.shards if given is None else given
    if shards or given is not None:
        if not is_power_of_two(shards):
            raise ValueError(f"shards must be 1, 2, 4, 8, ..., not {shards!r}")
        ranks.own(shards)
    elif ranks.world > 1:
        raise ValueError("a trial on several devices needs shards: as `shards: 8` of the study, or in the trainer")
    return shards


def refuse_inexact(trainer: object, base: type, model: nn.Module, *, is_fixed: bool) -> None:
    """Raises ValueError where several ranks could not learn the same as one. is_fixed: as many ranks, always."""
    for name in OVERRIDDEN:
        if getattr(type(trainer), name) is not getattr(base, name):
            raise ValueError(
                f"{type(trainer).__name__} overrides `{name}`, which knows of no shards: say it in `loss`, "
                "`clip_grad_norm`, `micro_batch_size` and `after_step`, or train without shards"
            )
    for path, module in model.named_modules() if not is_fixed else ():
        if isinstance(module, ACROSS):
            raise ValueError(
                f"{path or 'the model'} is a {type(module).__name__}, whose results depend on how many devices there "
                "are: with shards, the usual module has the same bits on any number of them"
            )


def shards_in(whole: BatchSpan, shards: int) -> list[BatchSpan]:
    """The shards of a batch, first to last; of a small one, some are empty."""
    return [
        BatchSpan(whole.epoch, whole.offset + begin, whole.indices[begin:end])
        for begin, end in cut(len(whole.indices), shards)
    ]


class Sharding:
    """How a trainer learns by shards.

    seed: the study's. means: what the trainer's `accumulate` asks for the loss. is_divided: whether each rank has only
    a part of each parameter. is_fixed: whether the number of ranks is a part of the results.
    """

    is_divided = is_fixed = False

    def __init__(self, shards: int, seed: int, device: str) -> None:
        self.shards, self._seed, self._device = shards, seed, device
        self.means = ShardMeans()
        self._moving: set[str] = set()  # buffers that have changed so far: looking costs a wait for the device
        self._early = EarlySums()

    @property
    def ranks(self) -> Ranks:
        return here()

    def seed_part(self, number: int) -> None:
        """A part of the measured data draws by itself, as in any other process."""
        generators.seed(seed_of(self._seed, "measure", number))

    def own(self, whole: BatchSpan) -> list[BatchSpan]:
        """The shards of a batch that this rank has, without the empty ones."""
        spans = shards_in(whole, self.shards)
        return [spans[shard] for shard in self.own_shards() if spans[shard].indices]

    def prepare(
        self,
        model: nn.Module,
        loss: Callable[[Any], Any],
        shard: Callable[[nn.Module, Any], None],
        replicate: Callable[[nn.Module], nn.Module],
    ) -> None:
        """Make a model, on its device, one of several ranks. The functions are the trainer's. Raises ValueError."""

    def loss_of(self, batch: Any, loss: Callable[[Any], Any]) -> Any:
        """The trainer's loss."""
        return loss(batch)

    def refuse_small(self, whole: BatchSpan, parts: str) -> None:
        """Raises ValueError where all ranks must have some of a batch, and one would have nothing."""
        if len(whole.indices) < self.shards:
            raise ValueError(
                f"a batch of {len(whole.indices)} samples is too small for {parts}, each of which needs one; "
                "drop_last=True leaves the rest of an epoch out"
            )

    def own_shards(self) -> range:
        """Their numbers."""
        return self.ranks.own(self.shards)

    def learn(
        self, whole: BatchSpan, model: nn.Module, optimizer: Optimizer, part: Callable[[BatchSpan], None]
    ) -> None:
        """Have the gradient of a whole batch in all parameters. part: adds the gradient of a shard."""
        others = (each for group in optimizer.param_groups for each in group["params"])  # a loss may have some, too
        parameters = list(dict.fromkeys(each for each in (*model.parameters(), *others) if each.requires_grad))
        buffers = ModelBuffers(model)
        self.means.samples, self.means.is_counted = len(whole.indices), False
        before, tree, present = generators.mark(self._device), TreeSum(), [False] * len(parameters)
        spans = shards_in(whole, self.shards)
        for shard in (own := self.own_shards()):
            with self._watching(parameters, tree, is_last=shard == own[-1]):
                leaf = self._leaf(whole, shard, spans[shard], parameters, buffers, part, present)
            if shard == own[-1]:
                self._early.send_rest(leaf, tree)
            tree.add(leaf)
        generators.go_back(before, self._device)
        self._moving |= buffers.changed(self._moving)
        names = list(buffers.floats)
        late = self._early.came_late(len(parameters))
        flags = self.ranks.any([*late, *present, *(name in self._moving for name in names), self.means.is_counted])
        late, flags = flags[: len(late)], flags[len(late) :]
        moving = [name for name, moves in zip(names, flags[len(parameters) : -1], strict=True) if moves]
        self._moving |= set(moving)
        summed = self._early.take(late, flags[: len(parameters)])
        self._take(tree, parameters, flags, buffers, moving, summed)
        first = next(shard for shard, span in enumerate(spans) if span.indices)
        self.ranks.broadcast(buffers.whole_numbers(), first // (self.shards // self.ranks.world))
        self.means.forget()

    def _watching(
        self, parameters: Sequence[nn.Parameter], tree: TreeSum, *, is_last: bool
    ) -> AbstractContextManager[None]:
        """A shard is learned from inside: the sums over all ranks begin with the last one."""
        world = self.ranks.world
        return self._early.during(parameters, tree, world) if is_last and world > 1 else nullcontext()

    def _leaf(
        self,
        whole: BatchSpan,
        shard: int,
        span: BatchSpan,
        parameters: list[nn.Parameter],
        buffers: ModelBuffers,
        part: Callable[[BatchSpan], None],
        present: list[bool],
    ) -> list[Tensor]:
        """A shard's gradients, the changes of all buffers that may move, and its count."""
        self.means.count = torch.zeros((), device=self._device)
        for parameter in parameters:
            parameter.grad = None
        if span.indices:
            buffers.put_back()
            generators.seed(seed_of(self._seed, "shard", whole.epoch, whole.offset, shard))
            with noting_memory(span, self.shards):
                part(span)
        leaf = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
        for number, parameter in enumerate(parameters):
            present[number] |= parameter.grad is not None
            parameter.grad = None
        share = len(span.indices) / len(whole.indices)
        return [*leaf, *buffers.deltas(share), self.means.count]

    def _take(
        self,
        tree: TreeSum,
        parameters: list[nn.Parameter],
        flags: list[bool],
        buffers: ModelBuffers,
        moving: list[str],
        summed: dict[int, Tensor],
    ) -> None:
        """Add up over all ranks; of what no rank has, nothing is sent."""
        mine = tree.take()
        gradients, changes, count = mine[: len(parameters)], mine[len(parameters) : -1], mine[-1]
        by_name = dict(zip(buffers.floats, changes, strict=True))
        sent = [each for number, each in enumerate(gradients) if flags[number] and number not in summed]
        sent += [by_name[name] for name in moving] + ([count] if flags[-1] else [])
        self.ranks.across(sent)
        gradients = [summed.get(number, each) for number, each in enumerate(gradients)]
        for parameter, gradient, is_there in zip(parameters, gradients, flags, strict=False):
            if is_there:
                parameter.grad = gradient
                if flags[-1]:
                    gradient.mul_((self.means.samples / count.clamp(min=1)).to(gradient.dtype))
        buffers.finish({name: by_name[name] for name in moving})


@contextmanager
def noting_memory(span: BatchSpan, shards: int) -> Iterator[None]:
    """An error for want of memory gets a note: more ranks do not make a pass smaller."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        error.add_note(
            f"A pass had a shard's {len(span.indices)} samples, on however many devices: more shards than {shards}, or "
            "micro_batch_size, make it smaller."
        )
        raise


class ModelBuffers:
    """A model's buffers as they were before a batch.

    floats: the names of the buffers that change by a sum.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before = {name: each.detach().clone() for name, each in self._now()}
        self._first: dict[str, Tensor] = {}
        self._is_moved: dict[str, Tensor] = {}
        self._is_first = True
        self.floats = [name for name, each in self._before.items() if _is_float(each)]

    def put_back(self) -> None:
        """For the next shard, they are as they were."""
        if self._is_first:  # they are
            return
        with torch.no_grad():
            for name, each in self._now():
                each.copy_(self._before[name])

    def deltas(self, share: float) -> Iterator[Tensor]:
        """By how much a shard has changed each of `floats`, times its share of the batch."""
        if not share:
            yield from (torch.zeros_like(self._before[name]) for name in self.floats)
            return
        for name, each in self._now():
            if _is_float(each):
                is_other = each.detach() != self._before[name]
                moved = is_other.any()
                self._is_moved[name] = moved | self._is_moved[name] if name in self._is_moved else moved
                yield torch.where(is_other, each.detach() - self._before[name], 0).mul_(share)
            elif self._is_first:
                self._first[name] = each.detach().clone()
        self._is_first = False

    def changed(self, known: set[str]) -> set[str]:
        """The names in `floats` that some shard has changed, but for the known ones."""
        names = [name for name in self._is_moved if name not in known]
        flags = torch.stack([self._is_moved[name] for name in names]).tolist() if names else []
        return {name for name, is_moved in zip(names, flags, strict=True) if is_moved}

    def finish(self, changes: dict[str, Tensor]) -> None:
        """They are as after the batch."""
        with torch.no_grad():
            for name, each in self._now():
                each.copy_(self._first.get(name, self._before[name]))
                if name in changes:
                    each.add_(changes[name])

    def whole_numbers(self) -> list[Tensor]:
        """The other buffers, which are as the first shard has left them."""
        return [each.detach() for _, each in self._now() if not _is_float(each)]

    def _now(self) -> Iterator[tuple[str, Tensor]]:
        return self._model.named_buffers()


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
