"""The order of the data: which samples each batch has, as a function of seed, epoch and place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

from torch import Generator, Tensor

from stagetree.trainer.building import whole_number


@dataclass(frozen=True, slots=True)
class BatchSpan:
    """The samples `indices` of an epoch, from the `offset`-th in its order on."""

    epoch: int
    offset: int
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Batching:
    """How batches make steps: `per_step` of them, or as many as make an epoch one step, or `steps_per_epoch`.

    drop_last: as of a DataLoader. micro_size: samples of a batch that are learned from at once, if not all.
    Raises ValueError.
    """

    per_step: int | None = None
    steps_per_epoch: int | None = None
    drop_last: bool = False
    micro_size: int | None = None

    def __post_init__(self) -> None:
        arguments = {"batches_per_step": self.per_step, "micro_batch_size": self.micro_size}
        for name, value in {**arguments, "steps_per_epoch": self.steps_per_epoch}.items():
            if value is not None:
                whole_number(name, value)
        if self.per_step and self.steps_per_epoch:
            raise ValueError("a step is batches_per_step batches, or an epoch has steps_per_epoch: not both")


@dataclass(frozen=True, slots=True)
class Order:
    """What comes after a place in the data.

    of_epoch: the indices of all samples of an epoch, as they come. batch_size, drop_last: as of a DataLoader.
    """

    of_epoch: Callable[[int], Tensor]
    batch_size: int
    drop_last: bool

    def place(self, epoch: int, offset: int) -> tuple[int, int]:
        """Where the next batch begins: here, or with the next epoch if this one has none left. Raises ValueError."""
        if self._left(epoch, offset):
            return epoch, offset
        if not self._left(epoch + 1, 0):
            held = len(self.of_epoch(epoch + 1))
            raise ValueError(f"a batch has {self.batch_size} samples, and train_data only {held}, with drop_last")
        return epoch + 1, 0

    def batches_left(self, epoch: int, offset: int, end: int | None = None) -> int:
        """How many batches begin before the `end`-th sample of an epoch; None is its end."""
        if end is None:
            return self._left(epoch, offset)
        return min(self._left(epoch, offset), -(-(end - offset) // self.batch_size))

    def batch(self, epoch: int, offset: int) -> BatchSpan:
        """The batch that begins at a place that `place` gave."""
        indices = self.of_epoch(epoch)[offset : offset + self.batch_size]
        return BatchSpan(epoch, offset, tuple(indices.tolist()))

    def batches(self, epoch: int, offset: int) -> Iterator[BatchSpan]:
        """All batches from a place on, forever."""
        while True:
            epoch, offset = self.place(epoch, offset)
            yield self.batch(epoch, offset)
            offset += self.batch_size

    def _left(self, epoch: int, offset: int) -> int:
        samples = max(len(self.of_epoch(epoch)) - offset, 0)
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)


def parts(span: BatchSpan, size: int | None) -> Iterator[BatchSpan]:
    """A batch in pieces of at most `size` samples."""
    size = size or max(len(span.indices), 1)
    for start in range(0, len(span.indices), size):
        yield BatchSpan(span.epoch, span.offset + start, span.indices[start : start + size])


def seed_of(seed: int, purpose: str, *place: int) -> int:
    """A seed of 32 bits for each purpose and place: nothing that is drawn by it has a state to save."""
    digest = blake2b(repr((seed, purpose, *place)).encode(), digest_size=4).digest()
    return int.from_bytes(digest)


def generator_of(seed: int, purpose: str, *place: int) -> Generator:
    """A generator of its own for each purpose and place."""
    return Generator().manual_seed(seed_of(seed, purpose, *place))
