"""Reads samples by index, in this process or ahead of it in worker processes, with the same batches.

Python's, NumPy's and torch's generators are seeded for each sample by (seed, epoch, index). Random numbers of a data
set or an augmentation therefore do not depend on the process, and do not disturb the generators of training. Data that
draws nothing is not seeded, which saves time.
"""

from __future__ import annotations

import multiprocessing
import pickle
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Protocol

import numpy as np
import torch
from torch import Generator
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

from stagetree.trainer import generators
from stagetree.trainer.data_order import BatchSpan, generator_of, seed_of
from stagetree.trainer.tensors import map_tensors, whole_number


class Samples(Protocol):
    """The data to learn from: a map-style data set, or any sequence of samples."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class Loading:
    """Settings of reading; they do not change the result. Raises ValueError.

    num_workers: processes that read ahead; 0 reads on demand. prefetch_factor: batches that each reads ahead.
    pin_memory: keep these batches in pinned memory, for faster copies to a GPU.
    """

    num_workers: int = 0
    prefetch_factor: int = 2
    pin_memory: bool = False

    def __post_init__(self) -> None:
        whole_number("num_workers", self.num_workers, least=0)
        whole_number("prefetch_factor", self.prefetch_factor)


def seed_sample(number: int) -> None:
    """Seed the global CPU generators for the next sample."""
    random.seed(number)
    np.random.seed(number)
    torch.default_generator.manual_seed(number)


Change = Callable[[Any, Generator], Any]


class SampleReader:
    """Reads samples of a map-style data set, seeded by (seed, purpose, epoch, index).

    change: applied to each sample; its generator has the same seed. To find out whether the data draws anything, the
    first sample is read twice with different seeds. If both are equal, samples are no longer seeded, and the samples
    of a batch are read together (`__getitems__`). If a batch draws nevertheless, it is read again with seeds.
    """

    def __init__(self, data: Samples, seed: int, purpose: str, change: Change | None = None) -> None:
        self._data, self._seed, self._purpose, self._change = data, seed, purpose, change
        self._is_tried, self._draws = False, True

    def draw_from(self, seed: int) -> None:
        """Continue with another seed."""
        self._seed = seed

    def read(self, epoch: int, indices: Sequence[int]) -> list[Any]:
        """The samples at these indices in an epoch."""
        if not self._draws:
            samples, has_drawn = self._read_unseeded(epoch, indices)
            if not has_drawn:
                return samples
            self._draws = True
        samples = [self._read_seeded(epoch, index) for index in indices]
        if not self._is_tried and indices:
            self._is_tried = True
            self._draws = self._is_drawn(samples[0], epoch, indices[0])
        return samples

    def _read_seeded(self, epoch: int, index: int) -> Any:
        seed_sample(seed_of(self._seed, self._purpose, epoch, index))
        return self._apply_change(self._data[index], epoch, index)

    def _is_drawn(self, sample: Any, epoch: int, index: int) -> bool:
        """Whether the sample differs with another seed."""
        try:
            before = _content(sample)
            seed_sample(seed_of(self._seed, "another", epoch, index))
            (again,), has_drawn = self._read_unseeded(epoch, [index])
            return has_drawn or _content(again) != before
        except Exception:  # samples cannot be compared, or the data set supports only one kind of read
            return True

    def _read_unseeded(self, epoch: int, indices: Sequence[int]) -> tuple[list[Any], bool]:
        """Read the samples without seeds. Returns whether anything was drawn."""
        before, several = generators.state("cpu"), getattr(self._data, "__getitems__", None)
        samples = [self._data[index] for index in indices] if several is None else several(list(indices))
        if self._change is not None:
            samples = [self._apply_change(*each) for each in zip(samples, repeat(epoch), indices, strict=False)]
        return samples, not generators.are_at(before)

    def _apply_change(self, sample: Any, epoch: int, index: int) -> Any:
        if self._change is None:
            return sample
        return self._change(sample, generator_of(self._seed, self._purpose, epoch, index))


def _content(sample: Any) -> bytes:
    """Bytes that are equal for equal samples. A tensor's own pickle would include its address."""
    return pickle.dumps(map_tensors(sample, lambda each: each.detach().reshape(-1).view(torch.uint8).numpy()))


class BatchReader(ABC):
    """Reads batches on demand."""

    @abstractmethod
    def read(self, span: BatchSpan, following: Callable[[], Iterator[BatchSpan]]) -> Any:
        """The batch of a span, on the device. following: it and all spans expected after it."""

    def restart(self) -> None:  # noqa: B027 - most readers read nothing ahead
        """Drop everything read ahead, because something that reading depends on has changed."""


def reader(
    data: TensorDataset | Samples, fetch: Callable[[BatchSpan], Any], device: str, loading: Loading
) -> BatchReader:
    """The reader for some data. fetch: reads and collates a span, in any process. Raises TypeError."""
    if isinstance(data, TensorDataset):
        return InMemoryReader(data, device)
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        kind = type(data).__name__
        raise TypeError(
            f"data must have a length and be read by index, and {kind} is not: the order of the data, and resuming in "
            "the middle of it, need a map-style data set (with __len__ and __getitem__), or as train_data a stream "
            "that knows its place (with state_dict and load_state_dict)"
        )
    if loading.num_workers:
        return PrefetchReader(fetch, device, loading)
    return OnDemandReader(fetch, device)


class InMemoryReader(BatchReader):
    """Tensors that are on the device as a whole. Indexing does not synchronize with it."""

    def __init__(self, data: TensorDataset, device: str) -> None:
        self._tensors, self._device = [tensor.to(device) for tensor in data.tensors], device

    def read(self, span: BatchSpan, following: Callable[[], Iterator[BatchSpan]]) -> Any:
        indices = torch.tensor(span.indices, dtype=torch.int64).to(self._device, non_blocking=True)
        return [tensor.index_select(0, indices) for tensor in self._tensors]


class OnDemandReader(BatchReader):
    """Reads in this process, on demand."""

    def __init__(self, fetch: Callable[[BatchSpan], Any], device: str) -> None:
        self._fetch, self._device = fetch, device

    def read(self, span: BatchSpan, following: Callable[[], Iterator[BatchSpan]]) -> Any:
        with generators.preserve("cpu"):
            batch = self._fetch(span)
        return map_tensors(batch, lambda tensor: tensor.to(self._device, non_blocking=True))


class PrefetchReader(BatchReader):
    """Reads ahead in worker processes, which are kept until something that they depend on changes."""

    def __init__(self, fetch: Callable[[BatchSpan], Any], device: str, loading: Loading) -> None:
        self._fetch, self._device, self._loading = fetch, device, loading
        self._loader: DataLoader[Any] | None = None
        self._batches: Iterator[tuple[BatchSpan, Any]] | None = None
        self._spans = _Spans()

    def read(self, span: BatchSpan, following: Callable[[], Iterator[BatchSpan]]) -> Any:
        there, batch = (None, None) if self._batches is None else next(self._batches, (None, None))
        if there != span:  # the first batch, another batch size, or another position
            self._spans.following = following
            if self._loader is None:  # not by truth value: the loader has no length
                self._loader = self._start_loader()
            self._batches = iter(self._loader)
            there, batch = next(self._batches)
        if there != span:
            raise RuntimeError(f"the workers read {there} instead of {span}")
        return map_tensors(batch, lambda tensor: tensor.to(self._device, non_blocking=True))

    def restart(self) -> None:
        """End the workers, which have copies of this process at the time they were started."""
        loader, self._loader, self._batches = self._loader, None, None
        iterator: Any = None if loader is None else loader._iterator
        if iterator is not None:  # otherwise garbage collection would join the workers, perhaps during a fork
            iterator._shutdown_workers()

    def _start_loader(self) -> DataLoader[Any]:
        context = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
        return DataLoader(
            _FetchedSpans(self._fetch),
            batch_size=None,
            sampler=self._spans,
            num_workers=self._loading.num_workers,
            prefetch_factor=self._loading.prefetch_factor,
            pin_memory=self._loading.pin_memory,
            collate_fn=_identity,
            persistent_workers=True,
            multiprocessing_context=context,
            generator=torch.Generator(),  # otherwise it would draw from training's generator
        )


class _Spans(Sampler[Any]):
    """The spans for the workers to read. `following` is called whenever they restart."""

    following: Callable[[], Iterator[BatchSpan]]

    def __init__(self) -> None:
        pass  # an older torch warns about its own __init__

    def __iter__(self) -> Iterator[BatchSpan]:
        return self.following()


class _FetchedSpans(Dataset[Any]):
    """A data set whose indices are spans."""

    def __init__(self, fetch: Callable[[BatchSpan], Any]) -> None:
        self._fetch = fetch

    def __getitem__(self, span: BatchSpan) -> tuple[BatchSpan, Any]:
        return span, self._fetch(span)


def _identity(value: Any) -> Any:
    return value


def is_ours(loader: DataLoader[Any]) -> bool:
    """Whether it is a loader of `TorchTrainer`, whose workers may stay alive."""
    return isinstance(loader.dataset, _FetchedSpans)
