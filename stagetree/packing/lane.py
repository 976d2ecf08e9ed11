"""One trainer of a pack, its random generators, and what its loss may depend on besides its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from stagetree.limits import BATCH_SIZES, DATA, DATA_SEED
from stagetree.packing.constants import has_constants
from stagetree.packing.refusals import NotPackable, refuse
from stagetree.packing.rows import OwnBatches, form_of
from stagetree.trainer import Trainer, generators
from stagetree.trainer.base import MetricSums
from stagetree.trainer.data_order import BatchSpan, parts
from stagetree.trainer.optimizer_groups import Precision
from stagetree.trainer.sample_loading import Ahead
from stagetree.trainer.torch_trainer import TorchTrainer
from stagetree.trainer.values import Recorded

Generators = dict[str, Any]
BatchKey = tuple[Any, ...]

PRODUCTS: tuple[Any, ...] = (torch.backends.cudnn, torch.backends.cuda.matmul)
"""What may multiply in TF32, with ten bits of a number: convolutions do unless they are told otherwise."""

PLACE = frozenset({"epoch", "offset", "batch_size", "hp", "seed", DATA_SEED})
"""Attributes of a trainer that are compared by themselves, or are equal within a plan."""


class Lane:
    """A trainer that has been set up; `Pack.join` makes it.

    device: as torch writes it. generators: the states of the global random generators at its next step. number: its row
    in the stack. updates_itself: whether it has an `update` of its own. has_hooks: whether it does something of its own
    between two batches, which may draw random numbers. is_excluded: whether it shares no pass with others, because its
    loss depends on a value in which they differ. unpackable_reason: why it takes part in no pass any more, if one of
    its own has failed. other_draws: the name of the first module that draws other random numbers in a pack than in the
    model alone; empty if none does.
    """

    def __init__(self, trainer: Trainer, device: str, generators: Generators, number: int) -> None:
        self.trainer: TorchTrainer = refuse(trainer)
        self.device, self.generators, self.number = device, generators, number
        self.updates_itself = type(self.trainer).update is not TorchTrainer.update
        self.has_hooks = self.updates_itself or type(self.trainer).after_step is not TorchTrainer.after_step
        self.is_excluded = False
        self.unpackable_reason: NotPackable | None = None
        self.other_draws = ""
        self._read = frozenset[str]()
        self._batch_key: BatchKey | None = None
        self._parts: list[tuple[Any, float]] = []  # of the next batch, if it was read ahead

    @property
    def model(self) -> nn.Module:
        return self.trainer.model

    # ------------------------------------------------------------------------------------------------ its way

    def setup(self, hp: Mapping[str, Any]) -> None:
        """Bring values into force, as the trainer's own `setup` does."""
        self._batch_key, self._parts = None, []
        self.by_itself(lambda: self.trainer.setup(dict(hp)))

    def by_itself(self, do: Callable[[], None]) -> None:
        """Do something with the generators of this lane."""
        generators.restore(self.generators, self.device)
        do()
        self.generators = generators.state(self.device)

    def batches(self) -> int:
        """How many there are in the coming step."""
        return self.trainer._batches_in_step()

    def next_batch(self) -> BatchSpan:
        return self.trainer._next_batch()

    @property
    def batch_hp(self) -> dict[str, Any]:
        """The hyper-parameters that decide which samples are in its batches."""
        return {name: self.trainer.hp[name] for name in BATCH_SIZES if name in self.trainer.hp}

    def pass_by(self, span: BatchSpan) -> None:
        """It has been learned from."""
        self.trainer._pass(span)

    def follow(self, lead: Lane, span: BatchSpan) -> None:
        """Be behind a batch of the size of another lane's, which is behind its own."""
        if self.is_mixed:
            self.pass_by(span)
        else:
            self.trainer.epoch, self.trainer.offset = lead.trainer.epoch, lead.trainer.offset

    def read_ahead(self) -> object:
        """Have the parts of the next batch; equal of lanes that may learn from theirs in one pass."""
        self._parts = list(self.read(self.next_batch()))
        return tuple((form_of(batch), share) for batch, share in self._parts)

    def read(self, span: BatchSpan) -> Iterator[tuple[Any, float]]:
        """The parts of a batch, each with its share of the samples."""
        if parts_read := self._parts:
            self._parts = []
            yield from parts_read
            return
        for part in parts(span, self.trainer._batching.micro_size):
            yield self.trainer._batch(part), len(part.indices) / len(span.indices)

    def first_batch(self) -> tuple[Any, float]:
        """The first part of its next batch as a pass has it for this lane, and its share of the samples."""
        batch, share = next(self.read(self.next_batch()))
        return OwnBatches({self.number: batch}) if self.has_own_batches else batch, share

    @property
    def is_read_ahead(self) -> bool:
        """Whether other processes read its batches while it learns."""
        return isinstance(self.trainer._train_reader, Ahead)

    @property
    def has_own_batches(self) -> bool:
        """Whether a pass has a row of samples for each lane: at the same place others may read other ones."""
        return self.is_mixed or DATA_SEED in self.trainer.hp

    @property
    def is_mixed(self) -> bool:
        """Whether its samples come from several streams, in shares of its own."""
        return self.trainer._mixed is not None

    @property
    def has_constants(self) -> bool:
        return has_constants(self.trainer)

    @property
    def is_coarse(self) -> bool:
        """Whether it computes in less than single precision."""
        return self.trainer._precision.is_reduced

    @property
    def is_rounded(self) -> bool:
        """Whether its products have fewer digits than its parameters: `is_coarse`, or by a GPU's TF32."""
        return self.is_coarse or (self.device != "cpu" and any(each.allow_tf32 for each in PRODUCTS))

    @contextmanager
    def in_single(self) -> Iterator[None]:
        """For a while it computes in its parameters' own precision."""
        before, allowed = self.trainer._precision, [each.allow_tf32 for each in PRODUCTS]
        self.trainer._precision = Precision("fp32", self.device)
        try:
            for each in PRODUCTS:
                each.allow_tf32 = False
            yield
        finally:
            self.trainer._precision = before
            for each, was in zip(PRODUCTS, allowed, strict=True):
                each.allow_tf32 = was

    def finish(self, is_stepped: bool) -> None:
        """Do what the trainer does with a gradient that is there; is_stepped: what is left after the optimizer's."""
        if is_stepped and not self.has_hooks and not self.trainer._average:
            return
        act = self._after_optimizer if is_stepped else self.trainer.update
        if self.has_hooks:
            self.by_itself(act)
        else:
            act()

    def _after_optimizer(self) -> None:
        if self.trainer._average:
            self.trainer._average.update()
        self.trainer.after_step()

    @property
    def logged(self) -> MetricSums:
        """The values that it has logged."""
        sums: MetricSums = vars(self.trainer).setdefault("_logged", MetricSums())
        return sums

    # ------------------------------------------------------------------------------------------------ what it is

    def shares_batch_with(self, other: Lane) -> bool:
        """Whether both learn from the same batch with the same random numbers, and differ in tensors only."""
        one, two = self.trainer, other.trainer
        if self.batch_key != other.batch_key:
            return False
        other._batch_key = self._batch_key  # the same object: its parts are not compared again
        return (
            not (self.is_excluded or other.is_excluded)
            and (one.epoch, one.offset, one.batch_size) == (two.epoch, two.offset, two.batch_size)
            and generators.are_equal(self.generators, other.generators)
        )

    @property
    def batch_key(self) -> BatchKey:
        """What the loss and the batches may depend on besides tensors and place.

        These are the hyper-parameters that are not the optimizer's or are read all the same, the kinds of the modules,
        and the plain values that trainer and modules have.
        """
        if self._batch_key is None:
            owned = {key for group in self.trainer.optimizer.param_groups for key in group}
            owned |= {*BATCH_SIZES, "optimizer", "momentum", DATA_SEED, *([DATA] if self.is_mixed else [])}
            owned -= self._read
            hp = {name: value for name, value in self.trainer.hp.items() if name not in owned}
            modules = [(type(module), _plain(vars(module))) for module in self.trainer.model.modules()]
            self._batch_key = (
                repr(sorted(hp.items())),
                self.has_own_batches,
                _plain(vars(self.trainer)),
                tuple(modules),
            )
        return self._batch_key

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note what is read of the hyper-parameters meanwhile. Raises `NotPackable` if the trainer changes itself."""
        before, hp = _plain(vars(self.trainer)), self.trainer.hp
        self.trainer.hp = recorded = Recorded(hp)
        try:
            yield
        finally:
            self.trainer.hp = hp
        self._read |= recorded.read
        self._batch_key = None
        if _plain(vars(self.trainer)) != before:
            raise NotPackable("its loss or its way to a batch changes the trainer itself: see `log`, and `after_step`")


def _plain(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    kinds = bool | int | float | str | None
    return tuple(
        (name, repr(value)) for name, value in values.items() if name not in PLACE and isinstance(value, kinds)
    )
