"""The order of the data, and reading it, in this process or ahead of it in others: the same batches.

Python's, NumPy's and torch's generators are seeded for each sample by (seed, epoch, index), so what a data set or an
augmentation draws from them is the sample's own, whichever process reads it, and training's generators never notice.
"""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
import torch
from torch import Generator, Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

from stagetree.trainer import generators
from stagetree.trainer.base import whole_number
from stagetree.trainer.tensors import map_tensors


@dataclass(frozen=True, slots=True)
class BatchSpan:
    """The samples `indices` of an epoch, from the `offset`-th in its order on."""

    epoch: int
    offset: int
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Batching:
    """How batches make steps: `per_step` of them, or as many as make an epoch one step, or `steps_per_epoch`.

    drop_last: as of a DataLoader. micro_size: samples of a batch that are learned from at once, if not all. shards: see
    `stagetree.trainer.sharding`. Raises ValueError.
    """

    per_step: int | None = None
    steps_per_epoch: int | None = None
    drop_last: bool = False
    micro_size: int | None = None
    shards: int | None = None

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


class Samples(Protocol):
    """What is learned from: a map-style data set, or any sequence of samples."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class Loading:
    """How to read, none of which changes what is read. Raises ValueError.

    num_workers: processes that read ahead; 0 reads when a batch is wanted. prefetch_factor: batches that each reads
    ahead. pin_memory: whether batches wait in memory that a GPU copies from by itself.
    """

    num_workers: int = 0
    prefetch_factor: int = 2
    pin_memory: bool = False

    def __post_init__(self) -> None:
        whole_number("num_workers", self.num_workers, least=0)
        whole_number("prefetch_factor", self.prefetch_factor)


class BatchReader(Protocol):
    """Gives the batches it is asked for."""

    def read(self, span: BatchSpan, following: Callable[[], Iterator[BatchSpan]]) -> Any:
        """The batch of a span, on the device. following: it and all that will be asked for after it, as things are."""

    def restart(self) -> None:
        """What is read from here on depends on what has changed in this process."""


def reader(
    data: TensorDataset | Samples, fetch: Callable[[BatchSpan], Any], device: str, loading: Loading
) -> BatchReader:
    """The reader for some data. fetch: the collated batch of a span, wherever it is called. Raises TypeError."""
    if isinstance(data, TensorDataset):
        return InMemory(data, device)
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        kind = type(data).__name__
        raise TypeError(
            f"data must have a length and be read by index, and {kind} is not: the order of the data, and going on in "
            "the middle of it, need a map-style data set (with __len__ and __getitem__)"
        )
    if loading.num_workers:
        return Ahead(fetch, device, loading)
    return AsWanted(fetch, device)


class InMemory:
    """Tensors that lie on the device as a whole. Nothing here waits for it: it computes while it is given more."""

    def __init__(self, data: TensorDataset, device: str) -> None:
        self._tensors, self._device = [tensor.to(device) for tensor in data.tensors], device

    def read(self, span: BatchSpan, following: Callable[[], Iterator[BatchSpan]]) -> Any:
        indices = torch.tensor(span.indices, dtype=torch.int64).to(self._device, non_blocking=True)
        return [tensor.index_select(0, indices) for tensor in self._tensors]

    def restart(self) -> None:
        pass


class AsWanted:
    """Reads in this process, when a batch is asked for."""

    def __init__(self, fetch: Callable[[BatchSpan], Any], device: str) -> None:
        self._fetch, self._device = fetch, device

    def read(self, span: BatchSpan, following: Callable[[], Iterator[BatchSpan]]) -> Any:
        with generators.kept("cpu"):
            batch = self._fetch(span)
        return map_tensors(batch, lambda tensor: tensor.to(self._device, non_blocking=True))

    def restart(self) -> None:
        pass


class Ahead:
    """Reads in worker processes, ahead of what is asked for. They live as long as nothing they have read by changes."""

    def __init__(self, fetch: Callable[[BatchSpan], Any], device: str, loading: Loading) -> None:
        self._fetch, self._device, self._loading = fetch, device, loading
        self._loader: DataLoader[Any] | None = None
        self._batches: Iterator[tuple[BatchSpan, Any]] | None = None
        self._spans = _Spans()

    def read(self, span: BatchSpan, following: Callable[[], Iterator[BatchSpan]]) -> Any:
        there, batch = (None, None) if self._batches is None else next(self._batches, (None, None))
        if there != span:  # the first one, another batch size, or another place
            there, batch = next(self._from(following))
        if there != span:
            raise RuntimeError(f"the workers read {there} where {span} was asked for")
        return map_tensors(batch, lambda tensor: tensor.to(self._device, non_blocking=True))

    def restart(self) -> None:
        """End the workers: each has a copy of this process as it was when the worker began."""
        loader, self._loader, self._batches = self._loader, None, None
        iterator: Any = None if loader is None else loader._iterator
        if iterator is not None:  # the collector would wait for each, and perhaps in the middle of a fork
            iterator._shutdown_workers()

    def _from(self, following: Callable[[], Iterator[BatchSpan]]) -> Iterator[tuple[BatchSpan, Any]]:
        self._spans.following = following
        if self._loader is None:  # a loader of endless data has no truth value
            self._loader = self._started()
        self._batches = iter(self._loader)
        return self._batches

    def _started(self) -> DataLoader[Any]:
        context = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
        return DataLoader(
            _Fetched(self._fetch),
            batch_size=None,
            sampler=self._spans,
            num_workers=self._loading.num_workers,
            prefetch_factor=self._loading.prefetch_factor,
            pin_memory=self._loading.pin_memory,
            collate_fn=_as_it_is,
            persistent_workers=True,
            multiprocessing_context=context,
            generator=torch.Generator(),  # else it would draw from the one that training draws from
        )


class _Spans(Sampler[Any]):
    """What the workers are to read. `following` is asked whenever they begin anew."""

    following: Callable[[], Iterator[BatchSpan]]

    def __init__(self) -> None:
        pass  # an older torch warns of its own __init__

    def __iter__(self) -> Iterator[BatchSpan]:
        return self.following()


class _Fetched(Dataset[Any]):
    """A data set whose indices are spans."""

    def __init__(self, fetch: Callable[[BatchSpan], Any]) -> None:
        self._fetch = fetch

    def __getitem__(self, span: BatchSpan) -> tuple[BatchSpan, Any]:
        return span, self._fetch(span)


def _as_it_is(value: Any) -> Any:
    return value


def seed_sample(seed: int, purpose: str, epoch: int, index: int) -> int:
    """Give the global generators of the CPU to one sample; the seed it got."""
    number = seed_of(seed, purpose, epoch, index)
    random.seed(number)
    np.random.seed(number)
    torch.default_generator.manual_seed(number)
    return number


def is_ours(loader: DataLoader[Any]) -> bool:
    """Whether it is a loader of `TorchTrainer`, whose workers may live as long as they like."""
    return isinstance(loader.dataset, _Fetched)
