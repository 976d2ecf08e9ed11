"""The metrics of a model over all validation data, on any number of ranks."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from stagetree.trainer.base import Trainer
from stagetree.trainer.data_order import BatchSpan, parts
from stagetree.trainer.ranks.sharding import Sharding
from stagetree.trainer.sample_loading import BatchReader, Samples
from stagetree.trainer.tensors import Mean, one_number, sum_and_count


class MeasuringTrainer(Trainer):
    """The validation part of `stagetree.TorchTrainer`."""

    eval_batch_size: int = 1000
    """Samples to evaluate at once. Not a hyper-parameter, since a metric does not depend on how a trial is trained."""

    _valid_data: TensorDataset | Samples
    _valid_reader: BatchReader
    _sharding: Sharding | None

    @abstractmethod
    def measure(self, batch: Any) -> Mapping[str, Mean]:
        """The metrics of one batch, each a mean over its samples or (sum, count); `evaluate` averages them."""

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
