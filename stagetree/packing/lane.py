"""One trainer of a pack: its random generators, and the non-tensor values that its loss may depend on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from stagetree.limits import BATCH_SIZES, DATA, DATA_SEED
from stagetree.packing.packability import NotPackable, require_packable
from stagetree.packing.rows import LaneBatches, batch_structure
from stagetree.trainer import Trainer, generators
from stagetree.trainer.base import MetricSums
from stagetree.trainer.data_order import BatchSpan, parts
from stagetree.trainer.generators import GeneratorStates
from stagetree.trainer.optimizer_groups import Precision
from stagetree.trainer.sample_loading import PrefetchReader
from stagetree.trainer.torch_trainer import TorchTrainer
from stagetree.trainer.values import RecordedValues

BatchKey = tuple[Any, ...]

TF32_BACKENDS: tuple[Any, ...] = (torch.backends.cudnn, torch.backends.cuda.matmul)
"""The backends that may multiply in TF32, with a 10-bit mantissa. Convolutions do by default."""

POSITION_ATTRIBUTES = frozenset({"epoch", "offset", "batch_size", "hp", "seed", DATA_SEED})
"""Trainer attributes that are compared separately, or that are equal within a plan."""


class Lane:
    """A set-up trainer in a pack, made by `Pack.join`.

    device: as torch writes it. generators: the global generator states at its next step. number: its row in the stack.
    updates_itself: it overrides `update`. has_hooks: it runs code of its own between batches, which may draw random
    numbers. is_excluded: it shares no pass, because its loss depends on a value in which lanes differ.
    unpackable_reason: why it left all passes, after one of its own failed. other_draws: the first module that draws
    other random numbers in a pack than alone; empty if none does.
    """

    def __init__(self, trainer: Trainer, device: str, generators: GeneratorStates, number: int) -> None:
        self.trainer: TorchTrainer = require_packable(trainer)
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
        """Apply hyper-parameters, as the trainer's own `setup` does."""
        self._batch_key, self._parts = None, []
        self.run_with_generators(lambda: self.trainer.setup(dict(hp)))

    def run_with_generators(self, do: Callable[[], None]) -> None:
        """Call `do` with the generators of this lane."""
        generators.restore(self.generators, self.device)
        do()
        self.generators = generators.state(self.device)

    def batches(self) -> int:
        """The number of batches in the coming step."""
        return self.trainer._batches_in_step()

    def next_batch(self) -> BatchSpan:
        return self.trainer._next_batch()

    @property
    def batch_hp(self) -> dict[str, Any]:
        """The hyper-parameters that decide which samples are in its batches."""
        return {name: self.trainer.hp[name] for name in BATCH_SIZES if name in self.trainer.hp}

    def advance(self, span: BatchSpan) -> None:
        """Move the data position past a batch that has been learned from."""
        self.trainer._pass(span)

    def follow(self, lead: Lane, span: BatchSpan) -> None:
        """Move past a batch of the same size as the one that another lane has just passed."""
        if self.is_mixed:
            self.advance(span)
        else:
            self.trainer.epoch, self.trainer.offset = lead.trainer.epoch, lead.trainer.offset

    def read_ahead(self) -> object:
        """Read the parts of the next batch. Lanes with equal results can learn from theirs in one pass."""
        self._parts = list(self.read(self.next_batch()))
        return tuple((batch_structure(batch), share) for batch, share in self._parts)

    def read(self, span: BatchSpan) -> Iterator[tuple[Any, float]]:
        """The parts of a batch, each with its share of the samples."""
        if parts_read := self._parts:
            self._parts = []
            yield from parts_read
            return
        for part in parts(span, self.trainer._batching.micro_size):
            yield self.trainer._batch(part), len(part.indices) / len(span.indices)

    def first_batch(self) -> tuple[Any, float]:
        """The first part of the next batch in the form that a pass takes, and its share of the samples."""
        batch, share = next(self.read(self.next_batch()))
        return LaneBatches({self.number: batch}) if self.has_own_batches else batch, share

    @property
    def is_read_ahead(self) -> bool:
        """Whether worker processes prefetch its batches while it learns."""
        return isinstance(self.trainer._train_reader, PrefetchReader)

    @property
    def has_own_batches(self) -> bool:
        """Whether a pass needs samples for each lane: other lanes may read other samples at the same position."""
        return self.is_mixed or DATA_SEED in self.trainer.hp

    @property
    def is_mixed(self) -> bool:
        """Whether its samples come from several streams with weights of its own."""
        return self.trainer._mixed is not None

    @property
    def has_reduced_precision(self) -> bool:
        """Whether it computes in less than single precision."""
        return self.trainer._precision.is_reduced

    @property
    def has_rounded_products(self) -> bool:
        """Whether its products have fewer digits than its parameters, by reduced precision or TF32."""
        return self.has_reduced_precision or (self.device != "cpu" and any(each.allow_tf32 for each in TF32_BACKENDS))

    @contextmanager
    def full_precision(self) -> Iterator[None]:
        """Within the context it computes in its parameters' own precision."""
        before, allowed = self.trainer._precision, [each.allow_tf32 for each in TF32_BACKENDS]
        self.trainer._precision = Precision("fp32", self.device)
        try:
            for each in TF32_BACKENDS:
                each.allow_tf32 = False
            yield
        finally:
            self.trainer._precision = before
            for each, was in zip(TF32_BACKENDS, allowed, strict=True):
                each.allow_tf32 = was

    def finish(self, is_stepped: bool) -> None:
        """Apply the gradients. is_stepped: the stacked optimizer has made the step; only the rest is left."""
        if is_stepped and not self.has_hooks and not self.trainer._average:
            return
        act = self._finish_step if is_stepped else self.trainer.update
        if self.has_hooks:
            self.run_with_generators(act)
        else:
            act()

    def _finish_step(self) -> None:
        if self.trainer._average:
            self.trainer._average.update()
        self.trainer.after_step()

    @property
    def logged_sums(self) -> MetricSums:
        """The values that it has logged."""
        sums: MetricSums = vars(self.trainer).setdefault("_logged", MetricSums())
        return sums

    # ------------------------------------------------------------------------------------------------ batches

    def shares_batch_with(self, other: Lane) -> bool:
        """Whether both learn from the same batch with the same random numbers, and differ in tensors only."""
        one, two = self.trainer, other.trainer
        if self.batch_key != other.batch_key:
            return False
        other._batch_key = self._batch_key  # the same object: its parts are not compared again
        return (
            not (self.is_excluded or other.is_excluded)
            and (one.epoch, one.offset, one.batch_size) == (two.epoch, two.offset, two.batch_size)
            and self.generators == other.generators
        )

    @property
    def batch_key(self) -> BatchKey:
        """The non-tensor values that the loss and the batches may depend on, besides the data position.

        These are hyper-parameters that are not the optimizer's or are read by the loss, the types of the modules, and
        the plain attributes of trainer and modules.
        """
        if self._batch_key is None:
            owned = {key for group in self.trainer.optimizer.param_groups for key in group}
            owned |= {*BATCH_SIZES, "optimizer", "momentum", DATA_SEED, *([DATA] if self.is_mixed else [])}
            owned -= self._read
            hp = {name: value for name, value in self.trainer.hp.items() if name not in owned}
            modules = [(type(module), _plain(vars(module))) for module in self.trainer.model.modules()]
            own = self.has_own_batches, _plain(vars(self.trainer))
            self._batch_key = (repr(sorted(hp.items())), *own, tuple(modules))
        return self._batch_key

    @contextmanager
    def record_reads(self) -> Iterator[None]:
        """Record which hyper-parameters are read. Raises `NotPackable` if the trainer's own attributes change."""
        before, hp = _plain(vars(self.trainer)), self.trainer.hp
        self.trainer.hp = recorded = RecordedValues(hp)
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
        (name, repr(value))
        for name, value in values.items()
        if name not in POSITION_ATTRIBUTES and isinstance(value, kinds)
    )
