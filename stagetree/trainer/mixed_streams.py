"""Several data streams, mixed by the weights in a hyper-parameter `data`.

The stream of the n-th sample is a function of n, the weights and a seed; its sample follows from the number of samples
that the stream gave before. A position is therefore one number a stream, and training can continue with other weights.

The stream is chosen by the n-th number of a Weyl sequence, the fractional part of n times the golden ratio. Consecutive
numbers of it are evenly distributed in [0, 1) (Knuth, "The Art of Computer Programming", volume 3, section 6.4), so
that each batch has each stream's share up to a sample or two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from fractions import Fraction
from itertools import accumulate
from typing import Any, TypeGuard

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

from stagetree.sequences import SequenceError, did_you_mean, shares
from stagetree.sequences.values import check_stream
from stagetree.trainer.data_order import BatchSpan, Indices, generator_of, seed_of, shuffle
from stagetree.trainer.sample_loading import Samples
from stagetree.trainer.streaming import Resumable, Stream, gives_batches, is_stream

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio."""

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


class Mixture:
    """The order in which streams give samples.

    names: of the streams, in order. seen: the number of samples from all of them. taken: the number from each.
    """

    def __init__(self, names: Iterable[str], seed: int) -> None:
        self.names = sorted(check_stream(name, "train_data") for name in names)
        self.seen, self.taken = 0, [0] * len(self.names)
        self._drawn, self._bounds = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint64)
        self.draw_from(seed)
        if len(self.names) == 1:
            self.mix(self.names[0])

    def draw_from(self, seed: int) -> None:
        """Continue in the order of another seed."""
        self._first = np.uint64(seed_of(seed, "mix") << 32)

    def mix(self, value: Any) -> None:
        """Continue with other weights: the value of a hyper-parameter. Raises ValueError."""
        parts = _read(value)
        for name in parts:
            if name not in self.names:
                hint = did_you_mean(name, self.names)
                raise ValueError(f"data must name streams of train_data, {', '.join(self.names)}, not {name!r}{hint}")
        exact = [Fraction(share) for share in parts.values()]
        sums = [each / sum(exact) for each in accumulate(exact)][:-1]
        self._drawn = np.array([self.names.index(name) for name in parts])
        self._bounds = np.array([int(each * 2**64) for each in sums], dtype=np.uint64)

    def following(self, number: int) -> Numbers:
        """The streams of the next samples, by their indices. Raises ValueError if no weights are set."""
        if not len(self._drawn):
            raise ValueError(
                f"train_data has the streams {', '.join(self.names)}: the hyper-parameter data must say which are "
                "learned from, by a name or by weights such as {mix: {web: 0.7, code: 0.3}}"
            )
        places = np.arange(number, dtype=np.uint64) + np.uint64(self.seen)
        return self._drawn[np.searchsorted(self._bounds, places * _GOLDEN + self._first, side="right")]

    def advance(self, streams: Numbers) -> None:
        """Count samples that were drawn from these streams."""
        self.seen += len(streams)
        counts = np.bincount(streams, minlength=len(self.names)).tolist()
        self.taken = [before + count for before, count in zip(self.taken, counts, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "taken": dict(zip(self.names, self.taken, strict=True))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError if the state is of other streams."""
        if sorted(state["taken"]) != self.names:
            was = ", ".join(sorted(state["taken"]))
            raise ValueError(f"the checkpoint is of the streams {was}, not {', '.join(self.names)}: begin anew")
        self.seen, self.taken = state["seen"], [state["taken"][name] for name in self.names]


def _read(value: Any) -> dict[str, float]:
    try:
        return shares(value)
    except SequenceError as error:
        raise ValueError(f"data: {error}") from None
    except ValueError as error:
        raise ValueError(f"data {error}") from None


class MixedOrder:
    """The batches of streams that are read by index, as spans of indices into `data`, their concatenation.

    Each pass over a stream has its own permutation, decided by (seed, name, pass). If samples are read by index, the
    index also encodes the pass.
    """

    def __init__(self, streams: Mapping[str, Any], seed: int) -> None:
        self.mixture, self._seed = Mixture(streams, seed), seed
        parts = [streams[name] for name in self.mixture.names]
        for name, each in zip(self.mixture.names, parts, strict=True):
            if not (hasattr(each, "__len__") and hasattr(each, "__getitem__")):
                raise TypeError(
                    f"the stream {name} of train_data, of kind {type(each).__name__}, has no index, and others have: "
                    "let all be map-style data sets, or all iterables with state_dict and load_state_dict"
                )
            if not len(each):
                raise ValueError(f"the stream {name} of train_data holds no samples")
        self._lengths = [len(each) for each in parts]
        self._starts = [0, *accumulate(self._lengths)]
        is_tensors = all(isinstance(each, TensorDataset) for each in parts)
        self.data: Samples = _concatenate(streams, self.mixture.names) if is_tensors else Joined(parts)
        self._cycle = 0 if is_tensors else self._starts[-1]
        self._orders: list[dict[int, Indices]] = [{} for _ in parts]

    def draw_from(self, seed: int) -> None:
        """Continue in the order of another seed, from the same positions."""
        self._seed, self._orders = seed, [{} for _ in self._orders]
        self.mixture.draw_from(seed)

    def next(self, size: int) -> BatchSpan:
        """The next batch."""
        return self._batch(self.mixture, size)

    def advance(self, span: BatchSpan) -> None:
        """Move past the next batch."""
        self.mixture.advance(self.mixture.following(len(span.indices)))

    def batches(self, size: int) -> Iterator[BatchSpan]:
        """All batches from here on, endlessly, if the weights stay."""
        ahead = copy(self.mixture)
        while True:
            yield self._batch(ahead, size)
            ahead.advance(ahead.following(size))

    def _batch(self, mixture: Mixture, size: int) -> BatchSpan:
        streams, indices = mixture.following(size), np.empty(size, dtype=np.int64)
        for number in np.unique(streams).tolist():
            mine = streams == number
            indices[mine] = self._indices(number, mixture.taken[number], int(mine.sum()))
        return BatchSpan(0, mixture.seen, tuple(indices.tolist()))

    def _indices(self, stream: int, taken: int, number: int) -> Numbers:
        """The indices of the next `number` samples of a stream that has given `taken`."""
        parts: list[Numbers] = []
        while number:
            turn, offset = divmod(taken, self._lengths[stream])
            part = self._order(stream, turn)[offset : offset + number].numpy()
            parts.append(part + (self._starts[stream] + turn * self._cycle))
            taken, number = taken + len(part), number - len(part)
        return np.concatenate(parts)

    def _order(self, stream: int, turn: int) -> Indices:
        passes = self._orders[stream]
        if turn not in passes:
            generator = generator_of(self._seed, f"order of {self.mixture.names[stream]}", turn)
            order = shuffle(self._lengths[stream], generator)
            self._orders[stream] = passes = {**dict(sorted(passes.items())[-2:]), turn: order}
        return passes[turn]


class MixedStream:
    """The items of several streams as one endless stream. With loaders the items are batches, and weights are of
    batches.

    streams: by name. Raises ValueError.
    """

    epoch = 0

    def __init__(self, streams: Mapping[str, Resumable], seed: int) -> None:
        self.mixture = Mixture(streams, seed)
        self.is_loader = any(map(gives_batches, streams.values()))
        if self.is_loader and not all(map(gives_batches, streams.values())):
            raise ValueError("some streams of train_data are loaders, which make batches, and others give samples")
        self.kind = ", ".join(sorted({type(each).__name__ for each in streams.values()}))
        seeds = (seed_of(seed, f"stream of {name}") for name in self.mixture.names)
        self._streams = [Stream(streams[name], own) for name, own in zip(self.mixture.names, seeds, strict=True)]

    @property
    def offset(self) -> int:
        """The number of items taken."""
        return self.mixture.seen

    def mix(self, value: Any) -> None:
        """Continue with other weights: the value of a hyper-parameter `data`. Raises ValueError."""
        self.mixture.mix(value)

    def __iter__(self) -> MixedStream:
        return self

    def __next__(self) -> Any:
        return self.take(1)[1][0]

    def take(self, number: int, *, only_whole: bool = False) -> tuple[BatchSpan, list[Any]]:
        """The next `number` items, and their positions."""
        streams, begin = self.mixture.following(number), self.mixture.seen
        counts = np.bincount(streams, minlength=len(self._streams)).tolist()
        batches = [iter(self._items(*each)) for each in zip(self._streams, counts, strict=True)]
        items = [next(batches[each]) for each in streams.tolist()]
        self.mixture.advance(streams)
        return BatchSpan(0, begin, tuple(range(begin, begin + number))), items

    def state_dict(self) -> dict[str, Any]:
        """The position of each stream, and of the mixture."""
        places = dict(zip(self.mixture.names, (each.state_dict() for each in self._streams), strict=True))
        return {"mix": self.mixture.state_dict(), "streams": places}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ValueError if the state is of other streams."""
        self.mixture.load_state_dict(state["mix"])
        for name, stream in zip(self.mixture.names, self._streams, strict=True):
            stream.load_state_dict(state["streams"][name])

    def close(self) -> None:
        """End the worker processes."""
        for stream in self._streams:
            stream.close()

    @staticmethod
    def _items(stream: Stream, number: int) -> list[Any]:
        """The next items of a stream, across the ends of its passes."""
        items: list[Any] = []
        while len(items) < number:
            items += stream.take(number - len(items))[1]
        return items


def is_named(data: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether it is several streams, by name."""
    return isinstance(data, Mapping) and bool(data) and all(isinstance(name, str) for name in data)


def source_of(data: Any, seed: int) -> Stream | MixedStream | None:
    """The source of a stream's items, or of several named streams'; None for data with an index."""
    if is_named(data):
        return MixedStream(data, seed) if all(map(is_stream, data.values())) else None
    return Stream(data, seed) if is_stream(data) else None


class Joined(Dataset[Any]):
    """Map-style data sets, concatenated; indices beyond the end wrap around."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts, self._ends = parts, list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Any:
        part, own = self._locate(index)
        return self._parts[part][own]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Samples that are read together, by the data sets' own batch reads if they have them."""
        places = [self._locate(index) for index in indices]
        items = {part: iter(self._several(part, [own for of, own in places if of == part])) for part, _ in places}
        return [next(items[part]) for part, _ in places]

    def _several(self, part: int, indices: list[int]) -> Sequence[Any]:
        several = getattr(self._parts[part], "__getitems__", None)
        return [self._parts[part][index] for index in indices] if several is None else several(indices)

    def _locate(self, index: int) -> tuple[int, int]:
        row = index % self._ends[-1]
        part = int(np.searchsorted(self._ends, row, side="right"))
        return part, row - (self._ends[part - 1] if part else 0)


def _concatenate(streams: Mapping[str, TensorDataset], names: Sequence[str]) -> TensorDataset:
    """The tensors of all streams, concatenated."""
    forms = {name: [(each.shape[1:], each.dtype) for each in streams[name].tensors] for name in names}
    if odd := next((name for name in names if forms[name] != forms[names[0]]), None):
        raise ValueError(
            f"the streams of train_data must hold tensors of one shape and type, and {odd} differs from {names[0]}"
        )
    return TensorDataset(*map(torch.cat, zip(*(streams[name].tensors for name in names), strict=True)))
