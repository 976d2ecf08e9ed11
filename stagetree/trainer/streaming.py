"""Data that comes as a stream: an iterable with a position that can be saved and restored.

The protocol is that of torchdata's `StatefulDataLoader`, MosaicML's streaming loader and Hugging Face's iterable data
sets: `state_dict()` is the position of the next item, and after `load_state_dict` the next `iter()` begins there. The
position is part of a model's state, like an optimizer's.

Random numbers that a stream draws in this process are seeded by (seed, epoch, offset), and do not disturb training's
generators. Generators of its own workers must be in its state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol, TypeGuard, runtime_checkable

from torch.utils.data import DataLoader, TensorDataset, default_collate

from stagetree.trainer import generators
from stagetree.trainer.data_order import Batching, BatchSpan, generator_of, seed_of
from stagetree.trainer.sample_loading import Change, Loading, Samples, seed_sample
from stagetree.trainer.tensors import first_tensor, map_tensors


@runtime_checkable
class Resumable(Protocol):
    """An iterable whose position can be saved."""

    def __iter__(self) -> Iterator[Any]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


TrainData = TensorDataset | Samples | Resumable | Mapping[str, TensorDataset | Samples | Resumable]
"""Training data: one data set or stream, or several by name."""


class ItemSource(Protocol):
    """Items, pass after pass. is_loader: the items are batches. kind: the data's type, for messages."""

    @property
    def is_loader(self) -> bool: ...
    @property
    def kind(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def offset(self) -> int: ...
    def take(self, number: int, *, only_whole: bool = False) -> tuple[BatchSpan, list[Any]]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], /) -> None: ...
    def close(self) -> None: ...


def is_stream(data: object) -> TypeGuard[Resumable]:
    """Whether the data has a position of its own and is not read by index."""
    return isinstance(data, Resumable) and not (hasattr(data, "__len__") and hasattr(data, "__getitem__"))


def gives_batches(data: object) -> bool:
    """Whether the items are batches, as a loader's are."""
    return isinstance(data, DataLoader) or (hasattr(data, "batch_size") and hasattr(data, "dataset"))


class Stream:
    """The items of a stream, pass after pass, endlessly.

    data: the order of its items may depend on its number of workers (`num_workers`), which is saved with the position.
    seed: for random draws. epoch, offset: the position, as finished passes and items since.
    """

    def __init__(self, data: Resumable, seed: int) -> None:
        if not all(callable(getattr(data, name, None)) for name in ("state_dict", "load_state_dict")):
            raise TypeError(
                f"a stream must be an iterable that says where it is, by state_dict and load_state_dict, got a "
                f"{type(data).__name__}: torchdata's StatefulDataLoader takes the place of a DataLoader"
            )
        self._data, self._seed = data, seed
        self.is_loader, self.kind = gives_batches(data), type(data).__name__
        self.epoch = self.offset = 0
        self._items: Iterator[Any] | None = None
        self._loaded: dict[str, Any] | None = None  # the position to restore before the next read

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        return self.take(1)[1][0]

    def take(self, number: int, *, only_whole: bool = False) -> tuple[BatchSpan, list[Any]]:
        """The next `number` items, or the rest of a pass, and their positions. only_whole: skip an incomplete rest.

        Raises ValueError.
        """
        least = number if only_whole else 1
        for _ in range(2):  # the first attempt may find the end of a pass
            span, items = self._take_from_pass(number)
            if len(items) >= least:
                return span, items
        count = f"a pass over a stream ({self.kind}) gave {len(items)} items"
        raise ValueError(f"{count}, and a batch has {least}" if only_whole else count)

    def state_dict(self) -> dict[str, Any]:
        """The position, for `load_state_dict` of this stream or one like it."""
        place = self._loaded if self._loaded is not None else self._data.state_dict()
        return {"epoch": self.epoch, "offset": self.offset, "workers": self._workers, "place": place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a position. Raises ValueError if it was reached with another number of workers."""
        if state["workers"] != self._workers:
            raise ValueError(
                f"the data was read by {state['workers']} workers up to here, and would be by {self._workers} from "
                "here on, in another order: how many a stream has belongs in trainer_args, not in runtime_args"
            )
        self.epoch, self.offset = state["epoch"], state["offset"]
        self._loaded, self._items = deepcopy(state["place"]), None

    def close(self) -> None:
        """End the worker processes."""
        iterator: Any = getattr(self._data, "_iterator", None) if isinstance(self._data, DataLoader) else None
        self._items = None
        if hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()

    @property
    def _workers(self) -> int:
        return int(getattr(self._data, "num_workers", 0))

    def _take_from_pass(self, number: int) -> tuple[BatchSpan, list[Any]]:
        """The next items of this pass. The last one ends the pass."""
        if self._items is None:
            with self._drawing("pass", self.epoch):
                self._items = self._begin_pass()
        with self._drawing("items", self.epoch, self.offset):
            items = list(islice(self._items, number))
        span = BatchSpan(self.epoch, self.offset, tuple(range(self.offset, self.offset + len(items))))
        self.offset += len(items)
        if len(items) < number:
            self._items = None
            if self.offset:  # otherwise the loaded position was at the end of a pass
                self.epoch, self.offset = self.epoch + 1, 0
        return span, items

    def _begin_pass(self) -> Iterator[Any]:
        for each in (self._data, getattr(self._data, "dataset", None)):
            if (hear := getattr(each, "set_epoch", None)) is not None:
                hear(self.epoch)
        if self._loaded is not None:
            self._data.load_state_dict(self._loaded)
            self._loaded = None
        return iter(self._data)

    @contextmanager
    def _drawing(self, purpose: str, *place: int) -> Iterator[None]:
        before = generators.state("cpu")
        seed_sample(seed_of(self._seed, f"stream {purpose}", *place))
        try:
            yield
        finally:
            generators.restore(before, "cpu")


class StreamBatches:
    """The batches of a stream of samples, or of a loader.

    change: applied to each sample. own: the trainer's overridden methods among `collate` and `order`. Raises ValueError
    for settings that a stream does not support, or that a loader has already decided.
    """

    def __init__(
        self,
        stream: ItemSource,
        seed: int,
        device: str,
        change: Change | None,
        own: Mapping[str, Callable[..., Any]],
        batching: Batching,
        loading: Loading,
    ) -> None:
        self.stream, self.is_loader = stream, stream.is_loader
        self._refuse(batching, loading, stream.kind)
        for name in {*own, *(["transform"] if change else [])} - (
            set() if self.is_loader else {"collate", "transform"}
        ):
            raise ValueError(f"`{name}` would not be called: the stream of train_data decides that by itself")
        self._seed, self._device, self._change = seed, device, change
        self._collate: Callable[[list[Any]], Any] = own.get("collate", default_collate)
        self._only_whole = batching.drop_last
        self._items: list[Any] = []
        self._span = BatchSpan(0, 0, ())

    def next(self, batch_size: int) -> BatchSpan:
        """The next batch, read right away: a stream does not know how much is left."""
        if self.is_loader:
            span, self._items = self.stream.take(1)
            first = first_tensor(self._items[0])
            size = first.shape[0] if first is not None and first.dim() else 1
            self._span = replace(span, indices=tuple(range(size)))
        else:
            self._span, self._items = self.stream.take(batch_size, only_whole=self._only_whole)
        return self._span

    def read(self, part: BatchSpan) -> Any:
        """A part of the next batch, on the device."""
        if self.is_loader:
            (batch,) = self._items
        else:
            begin, before = part.offset - self._span.offset, generators.state("cpu")
            items = self._items[begin : begin + len(part.indices)]
            batch = self._collate([self._apply_change(*each) for each in zip(items, part.indices, strict=True)])
            generators.restore(before, "cpu")
        return map_tensors(batch, lambda tensor: tensor.to(self._device, non_blocking=True))

    def _apply_change(self, sample: Any, place: int) -> Any:
        if self._change is None:
            return sample
        place_of = self._span.epoch, place
        seed_sample(seed_of(self._seed, "sample", *place_of))
        return self._change(sample, generator_of(self._seed, "sample", *place_of))

    def _refuse(self, batching: Batching, loading: Loading, kind: str) -> None:
        if not batching.per_step:
            raise ValueError(f"train_data is a stream ({kind}), of no known length: say batches_per_step")
        if loading.num_workers:
            raise ValueError(
                f"num_workers reads data sets by index, and {kind} is a stream: a loader with workers of its own, such "
                "as torchdata's StatefulDataLoader, reads it ahead"
            )
        if self.is_loader and (batching.micro_size or batching.shards or batching.drop_last):
            raise ValueError(
                f"{kind} makes the batches itself: micro_batch_size, shards and drop_last need a stream of samples"
            )
