"""A trainer's position in its data, its batches, and its metrics over all validation data, on any number of ranks."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import zip_longest
from typing import Any, cast

import torch
from torch import Generator, Tensor
from torch.utils.data import TensorDataset, default_collate

from stagetree.trainer.base import Trainer
from stagetree.trainer.data_order import LARGE, ORDER, Batching, BatchSpan, Indices, Order, generator_of, parts, shuffle
from stagetree.trainer.mixed_streams import MixedOrder, MixedStream, is_named, source_of
from stagetree.trainer.ranks.parallel import sharding_of
from stagetree.trainer.sample_loading import Loading, SampleReader, Samples, reader
from stagetree.trainer.streaming import StreamBatches, TrainData
from stagetree.trainer.tensors import Mean, one_number, shorten_samples, sum_and_count, whole_number


class DataTrainer(Trainer):
    """The data part of `stagetree.TorchTrainer`, which describes arguments, methods and attributes.

    The position in the data is two integers, the epoch and the number of samples seen in it. A stream has a position of
    its own; with several named data sets it is the number of samples drawn from each.
    """

    caches = ("_mixed", "_orders", "_sharding", "_stream", "_train_samples", "_valid_samples")

    batch_size: int = 32
    """Used if the study has no hyper-parameter `bs` or `batch_size`."""
    seq_len: int | None = None
    """Positions of a training sample to learn from; None for all of them."""
    eval_batch_size: int = 1000
    """Samples to evaluate at once. Not a hyper-parameter, since a metric does not depend on how a trial is trained."""

    def __init__(
        self,
        *,
        seed: int,
        device: str,
        train_data: TrainData,
        valid_data: TensorDataset | Samples,
        batching: Batching,
        eval_batch_size: int | None,
        loading: Loading,
    ) -> None:
        super().__init__(seed=seed, device=device)
        self.epoch = self.offset = 0
        self.data_seed = seed
        if eval_batch_size is not None:
            self.eval_batch_size = whole_number("eval_batch_size", eval_batch_size)
        self._batching = batching
        self._sharding = sharding_of(batching, seed, device)
        self._orders: dict[int, Indices] = {}
        change = None if self._inherits("transform") else self.transform
        self._stream, self._mixed = None, None
        own = {name: getattr(self, name) for name in ("collate", "order") if not self._inherits(name)}
        if source := source_of(train_data, seed):
            self._stream = StreamBatches(source, seed, device, change, own, batching, loading)
        elif is_named(train_data):
            if not self._batching.per_step:
                raise ValueError("train_data is several streams, of which no epoch is made: say batches_per_step")
            if not self._inherits("order"):
                raise ValueError("`order` would not be called: the hyper-parameter data decides how streams are mixed")
            self._mixed = MixedOrder(train_data, self.seed)
        indexed = cast(TensorDataset | Samples, () if source else self._mixed.data if self._mixed else train_data)
        self._train_data, self._valid_data = indexed, valid_data
        self._train_samples = SampleReader(indexed, seed, "sample", change)
        self._valid_samples = SampleReader(valid_data, seed, "valid")
        self._train_reader = reader(indexed, self._fetch_train, device, loading)
        self._valid_reader = reader(valid_data, self._fetch_valid, device, loading)
        for name, data in (("train_data", indexed), ("valid_data", valid_data)):
            if not (data is indexed and source) and not len(data):
                raise ValueError(f"{name} holds no samples")

    def close(self) -> None:
        """End the worker processes."""
        self._train_reader.restart()
        self._valid_reader.restart()
        if self._stream is not None:
            self._stream.stream.close()

    # To be overridden -------------------------------------------------------------------------------------------------

    def transform(self, sample: Any, generator: Generator) -> Any:
        """Augment one training sample of a map-style data set, or of a stream.

        The global generators of Python, NumPy and torch are also seeded for the sample. This may run in a worker
        process, with this object as it was when a hyper-parameter that is not the optimizer's last changed.

        Args:
            sample: an item of the data set.
            generator: seeded by (seed, epoch, index of the sample), so that batches and workers make no
                difference. For a stream, the index is the sample's place in the epoch.
        """
        return sample

    def collate(self, samples: list[Any]) -> Any:
        """A batch of samples of a map-style data set, or of a stream: a nest of dicts and lists of tensors."""
        return default_collate(samples)

    def shorten(self, batch: Any, seq_len: int) -> Any:
        """Cut a training batch to a study's `seq_len`: of each tensor (B, T, ...), T. Raises ValueError."""
        return shorten_samples(batch, seq_len)

    def transform_batch(self, batch: Any, generator: Generator) -> Any:
        """Augment one training batch on the device: the fast way for data in memory.

        Args:
            batch: one tensor for each of the `TensorDataset`, or the collated samples.
            generator: on the CPU, seeded by the position in the data.
        """
        return batch

    def order(self, generator: Generator) -> Indices:
        """The indices of an epoch's samples in training order, equally many in each epoch. By default shuffled.

        A tensor, or a sequence whose slices are tensors.
        """
        return shuffle(len(self._train_data), generator)

    @abstractmethod
    def measure(self, batch: Any) -> Mapping[str, Mean]:
        """The metrics of one batch, each a mean over its samples or (sum, count); `evaluate` averages them."""

    # The data -------------------------------------------------------------------------------------------------------

    def _order(self) -> Order:
        return Order(self._indices, self.batch_size, self._batching.drop_last)

    def _indices(self, epoch: int) -> Indices:
        if epoch not in self._orders:
            order = self.order(generator_of(self.data_seed, "order", epoch))
            self._orders = {**dict(sorted(self._orders.items())[-2:]), epoch: order}  # readers may be an epoch ahead
        return self._orders[epoch]

    def _batches_in_step(self) -> int:
        if self._batching.per_step:
            return self._batching.per_step
        order = self._order()
        epoch, offset = order.place(self.epoch, self.offset)
        steps = self._batching.steps_per_epoch
        if not steps:
            return order.batches_left(epoch, offset)
        samples = len(self._indices(epoch))
        if self.batch_size > samples // steps:
            raise ValueError(f"a batch of {self.batch_size} is more than {steps} steps an epoch allow")
        steps_before = offset * steps // samples
        return order.batches_left(epoch, offset, -(-(steps_before + 1) * samples // steps))

    def _next_batch(self) -> BatchSpan:
        if self._stream is not None:
            return self._stream.next(self.batch_size)
        if self._mixed is not None:
            return self._mixed.next(self.batch_size)
        self.epoch, self.offset = self._order().place(self.epoch, self.offset)
        return self._order().batch(self.epoch, self.offset)

    def _pass(self, span: BatchSpan) -> None:
        """Move the position past a batch that has been learned from."""
        if self._stream is not None:
            self.epoch, self.offset = self._stream.stream.epoch, self._stream.stream.offset
        elif self._mixed is not None:
            self._mixed.advance(span)
            self.offset = self._mixed.mixture.seen
        else:
            self.epoch, self.offset = self._order().place(span.epoch, span.offset + len(span.indices))

    def _batch(self, span: BatchSpan) -> Any:
        if self._stream is not None:
            batch = self._stream.read(span)
        else:
            batch = self._train_reader.read(span, partial(self._following, span))
        if self.seq_len is not None:
            batch = self.shorten(batch, self.seq_len)
        return self.transform_batch(batch, generator_of(self.data_seed, "batch", span.epoch, span.offset))

    def _following(self, first: BatchSpan) -> Iterator[BatchSpan]:
        """The spans to read from a position on, endlessly, unless a hyper-parameter or the position changes."""
        order, mixed, size = self._order(), self._mixed, self._batching.micro_size
        for batch in mixed.batches(self.batch_size) if mixed else order.batches(self.epoch, self.offset):
            for part in parts(batch, size) if self._sharding is None else self._sharding.own(batch, size):
                if (part.epoch, part.offset) >= (first.epoch, first.offset):
                    yield part

    def _fetch_train(self, span: BatchSpan) -> Any:
        self.epoch, self.offset = span.epoch, span.offset  # in a worker, whose copy of this object lags
        return self.collate(self._train_samples.read(span.epoch, span.indices))

    def _fetch_valid(self, span: BatchSpan) -> Any:
        return self.collate(self._valid_samples.read(0, span.indices))

    def _data_place(self) -> dict[str, Any]:
        """The position in the data, as a part of the state."""
        place: dict[str, Any] = {"epoch": self.epoch, "offset": self.offset}
        if self._stream is not None:
            place["stream"] = self._stream.stream.state_dict()
        elif self._mixed is not None:
            place["mix"] = self._mixed.mixture.state_dict()
        elif self._is_computed():
            place["order"] = ORDER
        return place

    def _go_to(self, place: Mapping[str, Any]) -> None:
        """Go to a position. Raises ValueError for a position in data that was read in another way."""
        if (self._stream is not None, self._mixed is not None) != ("stream" in place, "mix" in place):
            raise ValueError("the checkpoint is of a trainer whose data was read in another way: begin the study anew")
        if self._is_computed() and place.get("order") != ORDER:
            text = "another order of the data than this version has: begin the study anew"
            raise ValueError(f"the checkpoint is of {text}")
        self.epoch, self.offset = place["epoch"], place["offset"]
        self._forget_orders()
        if self._stream is not None:
            self._stream.stream.load_state_dict(place["stream"])
        if self._mixed is not None:
            self._mixed.mixture.load_state_dict(place["mix"])

    def _is_computed(self) -> bool:
        """Whether the order of the data is computed by index instead of drawn."""
        return self._mixed is None and self._inherits("order") and len(self._train_data) >= LARGE

    def _forget_orders(self) -> None:
        """Drop cached orders: a user's `order` may depend on hyper-parameters that have changed."""
        if not self._inherits("order"):
            self._orders = {}

    def _inherits(self, name: str) -> bool:
        return getattr(getattr(self, name), "__func__", None) is getattr(DataTrainer, name)

    def _take_batch_size(self, name: str, value: Any) -> None:
        if self._stream is not None and self._stream.is_loader:
            raise ValueError(f"{name}: train_data is a loader, which makes the batches: give the samples' stream")
        self.batch_size = whole_number(name, value)

    def _take_data_seed(self, name: str, value: Any) -> None:
        """Continue in the order of another seed, at the same position."""
        seed = whole_number(name, value, least=0)
        if seed != self.data_seed:
            if self._stream is not None:
                raise ValueError(f"{name}: train_data is a stream, which comes in one order: give data with an index")
            self.data_seed, self._orders = seed, {}
            if self._mixed is not None:
                self._mixed.draw_from(seed)
            self._train_samples.draw_from(seed)
            self._train_reader.restart()

    def _take_data(self, name: str, value: Any) -> None:
        """Learn from streams with other weights, each from its current position."""
        source = self._mixed or (self._stream.stream if self._stream else None)
        if not isinstance(source, MixedOrder | MixedStream):
            raise ValueError(f"{name}: train_data has no names of streams: give a dict, such as {{'web': train_data}}")
        source.mixture.mix(value)

    # The metrics ----------------------------------------------------------------------------------------------------

    def _means(self) -> dict[str, float]:
        if self._sharding is not None:
            return self._means_by_shards(self._sharding.shards)
        spans = list(parts(BatchSpan(0, 0, tuple(range(len(self._valid_data)))), self.eval_batch_size))
        means = {}
        for name, (values, counts) in self._values_in_spans(spans).items():
            numbers = _numbers(name, values, counts)[0]
            means[name] = _mean(numbers, float(torch.stack(counts).sum()) if counts else None, spans)
        return means

    def _means_by_shards(self, shards: int) -> dict[str, float]:
        """Each rank measures its share of the batches, of which there are at least as many as shards."""
        size = min(self.eval_batch_size, -(-len(self._valid_data) // shards))
        spans = list(parts(BatchSpan(0, 0, tuple(range(len(self._valid_data)))), size))
        rank, world = self.ranks.rank, self.ranks.world
        by_name = self._values_in_spans(spans[rank::world], range(rank, len(spans), world))
        if self._sharding is not None and self._sharding.is_divided and rank >= len(spans) % world > 0:
            self._values_in_spans(spans[-1:], [len(spans) - 1])  # all ranks must gather parameters equally often
        by_rank = self.ranks.gather({name: _numbers(name, *pair) for name, pair in by_name.items()})
        means = {}
        for name in max(by_rank, key=len):  # a rank may have no batch
            values, counts = (_interleave([each[name][at] for each in by_rank if name in each]) for at in (0, 1))
            means[name] = _mean(values, sum(counts) if counts else None, spans)
        return means

    def _values_in_spans(self, spans: list[BatchSpan], numbers: Iterable[int] = ()) -> dict[str, _Values]:
        """By name, the value of each span, and its count if it has one. numbers: of the spans, in shards."""
        by_name = defaultdict[str, _Values](lambda: ([], []))
        for at, (span, number) in enumerate(zip_longest(spans, numbers)):
            if self._sharding is not None:
                self._sharding.seed_part(number)
            batch = self._valid_reader.read(span, lambda rest=spans[at:]: iter(rest))  # type: ignore[misc]
            measured = self.measure(batch)
            if not isinstance(measured, Mapping):
                raise TypeError(f"measure must return a dict of metrics, got {type(measured).__name__}")
            for name, mean in measured.items():  # read at the end, so that nothing waits for the device here
                values, counts = by_name[name]
                if pair := sum_and_count(f"{name} of measure", mean):
                    values.append(pair[0])
                    counts.append(pair[1])
                else:
                    values.append(one_number(f"{name} of measure", torch.as_tensor(mean, device=self.device)))
        return by_name


_Values = tuple[list[Tensor], list[Tensor]]


def _numbers(name: str, values: list[Tensor], counts: list[Tensor]) -> tuple[list[float], list[float]]:
    """The numbers of a metric. Raises TypeError if only some of them have counts."""
    if counts and len(counts) != len(values):
        raise TypeError(f"{name} of measure must be a mean in every batch, or (sum, count) in every batch")
    return torch.stack(values).tolist(), torch.stack(counts).tolist() if counts else []


def _mean(numbers: list[float], count: float | None, spans: list[BatchSpan]) -> float:
    """The mean over all batches: weighted by batch sizes, or sums divided by the count; NaN for a count of 0."""
    if count is None:
        sizes = [len(span.indices) for span in spans]
        return sum(value * size for value, size in zip(numbers, sizes, strict=True)) / sum(sizes)
    return sum(numbers) / count if count else math.nan


def _interleave(hands: list[list[float]]) -> list[float]:
    """Interleave the ranks' values, which were dealt out one by one."""
    return [value for row in zip_longest(*hands) for value in row if value is not None]
