"""Learning from a batch in shards, so that any number of ranks learns the same, bit for bit.

Each shard is learned from separately: with generators seeded for it, and the model's buffers as they were before the
batch. The gradients, and the changes of the buffers, are then added in the order of the tree. An integer buffer, such
as the number of batches seen, gets the value that the first shard left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stagetree.trainer import generators
from stagetree.trainer.data_order import BatchSpan, parts, seed_of
from stagetree.trainer.divided_tensors import divide_like, local
from stagetree.trainer.ranks.group import Ranks, here, is_power_of_two, shard_bounds
from stagetree.trainer.ranks.summing import EarlySums, TreeSum
from stagetree.trainer.tensors import ShardMeans

OVERRIDDEN = ("train_batch", "accumulate")
"""Methods of `TorchTrainer` that sharded training replaces."""

ACROSS = (nn.SyncBatchNorm, nn.DataParallel, nn.parallel.DistributedDataParallel)
"""Modules that use results of other processes, so that the number of ranks would change the result."""


def shards_of(argument: int | None) -> int:
    """The number of shards, by the trainer's own setting or else the study's; 0 for whole batches.

    Raises ValueError.
    """
    ranks = here()
    shards = ranks.shards if argument is None else argument
    if shards or argument is not None:
        if not is_power_of_two(shards):
            raise ValueError(f"shards must be 1, 2, 4, 8, ..., not {shards!r}")
        ranks.own(shards)
    elif ranks.world > 1:
        raise ValueError("a trial on several devices needs shards: as `shards: 8` of the study, or in the trainer")
    return shards


def refuse_inexact(trainer: object, base: type, model: nn.Module, *, is_fixed: bool) -> None:
    """Raises ValueError if several ranks could not learn the same as one. is_fixed: the number of ranks is fixed."""
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
    """The shards of a batch in order; some are empty for a small batch."""
    return [
        BatchSpan(whole.epoch, whole.offset + begin, whole.indices[begin:end])
        for begin, end in shard_bounds(len(whole.indices), shards)
    ]


class TrainerFunctions(NamedTuple):
    """The methods of a trainer with which a model is prepared for several ranks."""

    loss: Callable[[Any], Any]
    shard: Callable[[nn.Module, Any], None]
    replicate: Callable[[nn.Module], nn.parallel.DistributedDataParallel]


class Sharding:
    """How a trainer learns in shards.

    seed: the study's. means: combines the losses in the trainer's `accumulate`. is_divided: each rank has only a part
    of each parameter. is_fixed: the number of ranks is part of the results.
    """

    is_divided = is_fixed = False

    def __init__(self, shards: int, seed: int, device: str) -> None:
        self.shards, self._seed, self._device = shards, seed, device
        self.means = ShardMeans()
        self._moving: set[str] = set()  # buffers that have changed; testing one waits for the device
        self._early = EarlySums()

    @property
    def ranks(self) -> Ranks:
        return here()

    def seed_part(self, number: int) -> None:
        """Seed the generators for a part of the validation data, equally in any process."""
        generators.seed(seed_of(self._seed, "measure", number))

    def own(self, whole: BatchSpan, size: int | None) -> list[BatchSpan]:
        """The passes of this rank over a batch, each of at most `size` samples."""
        spans = shards_in(whole, self.shards)
        return [each for shard in self.own_shards() for each in self.passes(whole, spans[shard], size)]

    def passes(self, whole: BatchSpan, shard: BatchSpan, size: int | None) -> list[BatchSpan]:
        """The parts of a shard to learn from at once."""
        return list(parts(shard, size))

    def begin_pass(self, *, is_last: bool) -> None:
        """Called before each part of a shard. is_last: the last part of the shard."""

    def prepare(self, model: nn.Module, functions: TrainerFunctions) -> None:
        """Prepare a model on its device for several ranks. Raises ValueError."""

    def loss_of(self, batch: Any, loss: Callable[[Any], Any]) -> Any:
        """The trainer's loss."""
        return loss(batch)

    def refuse_small(self, whole: BatchSpan, parts: str) -> None:
        """Raises ValueError if a rank would have no sample of a batch; all ranks need one."""
        if len(whole.indices) < self.shards:
            raise ValueError(
                f"a batch of {len(whole.indices)} samples is too small for {parts}, each of which needs one; "
                "drop_last=True leaves the rest of an epoch out"
            )

    def own_shards(self) -> range:
        """The numbers of this rank's shards."""
        return self.ranks.own(self.shards)

    def learn(
        self, whole: BatchSpan, model: nn.Module, optimizer: Optimizer, part: Callable[[BatchSpan], None]
    ) -> None:
        """Compute the gradient of a whole batch in all parameters. part: adds the gradient of a shard."""
        spans, parameters = shards_in(whole, self.shards), gradient_parameters(model, optimizer)
        batch = BatchInShards(whole, spans, parameters, ModelBuffers(model))
        self.means.samples, self.means.is_counted = len(whole.indices), False
        before, tree = generators.state(self._device), TreeSum()
        for shard in (own := self.own_shards()):
            is_last = shard == own[-1]
            with self._overlap(batch.parameters, tree, is_last=is_last):
                leaf = self._leaf(batch, shard, part)
            self._add(leaf, tree, batch, is_last=is_last)
        generators.restore(before, self._device)
        self._store_sums(batch, self._sum_across_ranks(tree.take(), batch))
        first = next(shard for shard, span in enumerate(batch.spans) if span.indices)
        self.ranks.broadcast(batch.buffers.whole_numbers(), first // (self.shards // self.ranks.world))
        self.means.forget()

    def _overlap(
        self, parameters: Sequence[nn.Parameter], tree: TreeSum, *, is_last: bool
    ) -> AbstractContextManager[None]:
        """The context for learning from a shard: during the last one, sums over all ranks begin early."""
        world = self.ranks.world
        return self._early.overlap(parameters, tree, world) if is_last and world > 1 else nullcontext()

    def _leaf(self, batch: BatchInShards, shard: int, part: Callable[[BatchSpan], None]) -> list[Tensor]:
        """A shard's gradients, the changes of all buffers that may change, and its count."""
        span, whole, parameters = batch.spans[shard], batch.whole, batch.parameters
        self.means.count = torch.zeros((), device=self._device)
        for parameter in parameters:
            parameter.grad = None
        if span.indices:
            batch.buffers.put_back()
            generators.seed(seed_of(self._seed, "shard", whole.epoch, whole.offset, shard))
            with explain_memory(span, self.shards):
                part(span)
        leaf = [local(torch.zeros_like(each) if each.grad is None else each.grad) for each in parameters]
        for number, parameter in enumerate(parameters):
            batch.present[number] |= parameter.grad is not None
            parameter.grad = None
        share = len(span.indices) / len(whole.indices)
        return [*leaf, *batch.buffers.deltas(share), self.means.count]

    def _add(self, leaf: list[Tensor], tree: TreeSum, batch: BatchInShards, *, is_last: bool) -> None:
        """Add a shard to the tree."""
        if is_last:
            self._early.send_rest(leaf, tree)
        tree.add(leaf)

    def _sum_across_ranks(self, mine: list[Tensor], batch: BatchInShards) -> Sums:
        """Sum over all ranks. Values that no rank has are not sent."""
        parameters, buffers = batch.parameters, batch.buffers
        gradients, changes, count = mine[: len(parameters)], mine[len(parameters) : -1], mine[-1]
        names, late = list(buffers.floats), self._early.came_late(len(parameters))
        self._moving |= buffers.find_changed(self._moving)
        own_flags = [*late, *batch.present, *(name in self._moving for name in names), self.means.is_counted]
        flags = self.ranks.any(own_flags)
        late, present = flags[: len(parameters)], flags[len(parameters) : 2 * len(parameters)]
        moving = [name for name, moves in zip(names, flags[2 * len(parameters) : -1], strict=True) if moves]
        self._moving |= set(moving)
        summed = self._early.take(late, present)
        by_name = dict(zip(names, changes, strict=True))
        sent = [each for number, each in enumerate(gradients) if present[number] and number not in summed]
        self.ranks.across(sent + [by_name[name] for name in moving] + ([count] if flags[-1] else []))
        gradients = [summed.get(number, each) for number, each in enumerate(gradients)]
        return Sums(gradients, present, {name: by_name[name] for name in moving}, count if flags[-1] else None)

    def _store_sums(self, batch: BatchInShards, sums: Sums) -> None:
        """Store the sums as gradients and in the buffers."""
        for parameter, gradient, is_there in zip(batch.parameters, sums.gradients, sums.present, strict=True):
            if is_there:
                if sums.count is not None:
                    gradient.mul_((self.means.samples / sums.count.clamp(min=1)).to(gradient.dtype))
                parameter.grad = divide_like(gradient, parameter)
        batch.buffers.finish(sums.changes)


def gradient_parameters(model: nn.Module, optimizer: Optimizer) -> list[nn.Parameter]:
    """The parameters with gradients: the model's, and others of the optimizer."""
    others = (each for group in optimizer.param_groups for each in group["params"])
    return list(dict.fromkeys(each for each in (*model.parameters(), *others) if each.requires_grad))


class BatchInShards:
    """A batch to learn from. spans: its shards. present: for each parameter, whether it already has a gradient."""

    def __init__(
        self, whole: BatchSpan, spans: list[BatchSpan], parameters: list[nn.Parameter], buffers: ModelBuffers
    ) -> None:
        self.whole, self.spans, self.parameters, self.buffers = whole, spans, parameters, buffers
        self.present = [False] * len(parameters)


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over all shards of a batch: gradients, whether each is present, changes of buffers by name, and the count of
    the losses; None without counts."""

    gradients: list[Tensor]
    present: list[bool]
    changes: dict[str, Tensor]
    count: Tensor | None


@contextmanager
def explain_memory(span: BatchSpan, shards: int) -> Iterator[None]:
    """Add a note to out-of-memory errors: more ranks do not make a pass smaller."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        error.add_note(
            f"A pass had a shard's {len(span.indices)} samples, on any number of devices. More shards than {shards}, "
            "or micro_batch_size, make it smaller."
        )
        raise


class ModelBuffers:
    """A model's buffers as they were before a batch: reset before each shard; their changes are added up at the end.

    floats: the names of the buffers whose changes are added up.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before = {name: each.detach().clone() for name, each in self._now()}
        self._first: dict[str, Tensor] = {}
        self._is_moved: dict[str, Tensor] = {}
        self._is_first = True
        self.floats = [name for name, each in self._before.items() if _is_float(each)]

    def put_back(self) -> None:
        """Reset the buffers for the next shard."""
        if self._is_first:  # still unchanged
            return
        with torch.no_grad():
            for name, each in self._now():
                each.copy_(self._before[name])

    def deltas(self, share: float) -> Iterator[Tensor]:
        """The change of each of `floats` by a shard, times its share of the batch."""
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

    def find_changed(self, known: set[str]) -> set[str]:
        """The names in `floats` that a shard has changed and that are not in `known`."""
        names = [name for name in self._is_moved if name not in known]
        flags = torch.stack([self._is_moved[name] for name in names]).tolist() if names else []
        return {name for name, is_moved in zip(names, flags, strict=True) if is_moved}

    def finish(self, changes: dict[str, Tensor]) -> None:
        """Set the buffers to their values after the batch."""
        with torch.no_grad():
            for name, each in self._now():
                each.copy_(self._first.get(name, self._before[name]))
                if name in changes:
                    each.add_(changes[name])

    def whole_numbers(self) -> list[Tensor]:
        """The integer buffers, with the values of the first shard."""
        return [each.detach() for _, each in self._now() if not _is_float(each)]

    def _now(self) -> Iterator[tuple[str, Tensor]]:
        return self._model.named_buffers()


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
