"""The order of the data: which samples of an epoch are in which batch, and which batches in which step.

It is a function of (seed, epoch), so that a position is two integers. The permutation of a small data set is drawn as a
whole; for a large one, the sample at each position is computed on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

import numpy as np
import torch
from torch import Generator, Tensor

from stagetree.trainer.tensors import whole_number

LARGE = 2**24
"""The number of samples from which an epoch's order is computed; drawing it would take 128 MiB and more. The two orders
differ, so this number affects a plan's results."""

ORDER = "feistel"
"""The name of the computed order in a state."""

ROUNDS = 8
"""Rounds of the network that computes an order. Four suffice with an ideal round function (Luby and Rackoff, 1988)."""


Numbers = np.ndarray[tuple[int], np.dtype[np.uint64]]


class Indices(Protocol):
    """The indices of an epoch's samples, in order: a tensor, or a sequence whose slices are tensors."""

    def __len__(self) -> int: ...
    def __getitem__(self, places: slice, /) -> Tensor: ...


def shuffle(samples: int, generator: Generator, large: int = LARGE) -> Indices:
    """All indices in an order that the generator decides. large: the number from which the order takes no memory."""
    return Shuffled(samples, generator) if samples >= large else torch.randperm(samples, generator=generator)


class Shuffled:
    """A permutation of 0, 1, ..., computed on demand.

    A Feistel network is a bijection of all numbers with as many bits as the largest index. Results outside of the
    indices are put through the network again until they are inside, less than once on average. That is a permutation of
    the indices: the network's cycles only lose the numbers in between (Black and Rogaway, "Ciphers with arbitrary
    finite domains", CT-RSA 2002).
    """

    def __init__(self, samples: int, generator: Generator) -> None:
        bits = max(2, (samples - 1).bit_length())
        self._samples, self._low = samples, np.uint64(bits // 2)
        self._masks = np.uint64(2 ** (bits // 2) - 1), np.uint64(2 ** (bits - bits // 2) - 1)
        keys = torch.randint(2**63 - 1, (ROUNDS,), generator=generator)
        self._keys = [np.uint64(key) for key in keys.tolist()]

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, places: slice, /) -> Tensor:
        indices = self._permute(np.arange(*places.indices(self._samples), dtype=np.uint64))
        while (outside := np.flatnonzero(indices >= self._samples)).size:
            indices[outside] = self._permute(indices[outside])
        return torch.from_numpy(indices.astype(np.int64))

    def _permute(self, numbers: Numbers) -> Numbers:
        """Apply the network, whose halves may differ by one bit, alternating between them."""
        halves = [numbers & self._masks[0], numbers >> self._low]
        for turn, key in enumerate(self._keys):
            mine, other = turn % 2, 1 - turn % 2
            halves[mine] = halves[mine] ^ (_hash_numbers(halves[other] ^ key) & self._masks[mine])
        return halves[0] | halves[1] << self._low


def _hash_numbers(numbers: Numbers) -> Numbers:
    """Hash each number by the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ numbers >> np.uint64(shift)) * np.uint64(factor)
    return numbers ^ numbers >> np.uint64(31)


@dataclass(frozen=True, slots=True)
class BatchSpan:
    """The samples `indices` of an epoch, which begin at `offset` in its order."""

    epoch: int
    offset: int
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Batching:
    """How batches make steps: `per_step` of them, or `steps_per_epoch` steps an epoch, or one step an epoch.

    drop_last: as in a DataLoader. micro_size: samples to learn from at once, if not the whole batch. shards, parallel:
    see `stagetree.trainer.ranks.sharding` and `parallel`. Raises ValueError.
    """

    per_step: int | None = None
    steps_per_epoch: int | None = None
    drop_last: bool = False
    micro_size: int | None = None
    shards: int | None = None
    parallel: str | None = None

    def __post_init__(self) -> None:
        arguments = {"batches_per_step": self.per_step, "micro_batch_size": self.micro_size}
        for name, value in {**arguments, "steps_per_epoch": self.steps_per_epoch}.items():
            if value is not None:
                whole_number(name, value)
        if self.per_step and self.steps_per_epoch:
            raise ValueError("a step is batches_per_step batches, or an epoch has steps_per_epoch: not both")


@dataclass(frozen=True, slots=True)
class Order:
    """The batches from a position on.

    of_epoch: returns the indices of an epoch's samples, in order. batch_size, drop_last: as in a DataLoader.
    """

    of_epoch: Callable[[int], Indices]
    batch_size: int
    drop_last: bool

    def place(self, epoch: int, offset: int) -> tuple[int, int]:
        """The beginning of the next batch: here, or in the next epoch if this one has no more. Raises ValueError."""
        if self._batches_from(epoch, offset):
            return epoch, offset
        if not self._batches_from(epoch + 1, 0):
            held = len(self.of_epoch(epoch + 1))
            raise ValueError(f"a batch has {self.batch_size} samples, and train_data only {held}, with drop_last")
        return epoch + 1, 0

    def batches_left(self, epoch: int, offset: int, end: int | None = None) -> int:
        """The number of batches that begin before the `end`-th sample of an epoch; None for its end."""
        if end is None:
            return self._batches_from(epoch, offset)
        return min(self._batches_from(epoch, offset), -(-(end - offset) // self.batch_size))

    def batch(self, epoch: int, offset: int) -> BatchSpan:
        """The batch at a position returned by `place`."""
        indices = self.of_epoch(epoch)[offset : offset + self.batch_size]
        return BatchSpan(epoch, offset, tuple(indices.tolist()))

    def batches(self, epoch: int, offset: int) -> Iterator[BatchSpan]:
        """All batches from a position on, endlessly."""
        while True:
            epoch, offset = self.place(epoch, offset)
            yield self.batch(epoch, offset)
            offset += self.batch_size

    def _batches_from(self, epoch: int, offset: int) -> int:
        samples = max(len(self.of_epoch(epoch)) - offset, 0)
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)


def parts(span: BatchSpan, size: int | None) -> Iterator[BatchSpan]:
    """A batch in parts of at most `size` samples."""
    size = size or max(len(span.indices), 1)
    for start in range(0, len(span.indices), size):
        yield BatchSpan(span.epoch, span.offset + start, span.indices[start : start + size])


def seed_of(seed: int, purpose: str, *place: int) -> int:
    """A 32-bit seed for each purpose and position, so that random draws need no saved state."""
    digest = blake2b(repr((seed, purpose, *place)).encode(), digest_size=4).digest()
    return int.from_bytes(digest)


def generator_of(seed: int, purpose: str, *place: int) -> Generator:
    """A separate generator for each purpose and position."""
    return Generator().manual_seed(seed_of(seed, purpose, *place))


@contextmanager
def explain_single_sample(span: BatchSpan) -> Iterator[None]:
    """Add a note to errors for a batch of one sample, which batch normalization cannot learn from."""
    try:
        yield
    except ValueError as error:
        if len(span.indices) == 1:
            error.add_note("This batch has one sample, all that was left of the epoch: drop_last=True leaves it out.")
        raise
