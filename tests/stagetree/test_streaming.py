"""Streams: the place in them is a part of the state, so a break anywhere changes nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from resuming import assert_equal, assert_plain, one_thread, seed_generators
from torch import Generator, Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader, IterableDataset

from stagetree import TorchTrainer
from stagetree.packing.packability import NotPackable, require_packable
from stagetree.trainer import generators
from stagetree.trainer.streaming import Stream


class Buffered(IterableDataset[Any]):
    """Samples through a buffer from which each is drawn by chance: its place is more than a number."""

    def __init__(self, length: int = 17, num_workers: int = 0) -> None:
        self.length, self.num_workers = length, num_workers
        self.next, self.buffer = 0, list[int]()
        self.is_resumed = False

    def __iter__(self) -> Iterator[Tensor]:
        if not self.is_resumed:
            self.next, self.buffer = 0, []
        self.is_resumed = False
        while self.next < self.length or self.buffer:
            while self.next < self.length and len(self.buffer) < 4:
                self.buffer.append(self.next)
                self.next += 1
            number = self.buffer.pop(random.randrange(len(self.buffer)))
            yield torch.tensor([number, torch.rand(()).item(), np.random.rand()])

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next, "buffer": self.buffer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next, self.buffer, self.is_resumed = state["next"], state["buffer"], True


class Streaming(TorchTrainer):
    """A step is two batches."""

    name = "streaming"

    def __init__(self, data: Any = None, *, seed: int = 0, device: str = "cpu", **how: Any) -> None:
        super().__init__(
            seed=seed,
            device=device,
            model=nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.3), nn.Linear(2, 1)),
            train_data=Buffered() if data is None else data,
            valid_data=list(torch.ones(5, 3)),
            **{"batches_per_step": 2, **how},
        )
        self.seen: list[Tensor] = []

    def make_optimizer(self, hp: dict[str, Any]) -> Optimizer:
        return SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def transform_batch(self, batch: Tensor, generator: Generator) -> Tensor:
        self.seen.append(batch.clone())
        return batch + torch.rand(batch.shape, generator=generator)

    def loss(self, batch: Tensor) -> Tensor:
        return self.model(batch / 10).square().mean()


class Changed(Streaming):
    def transform(self, sample: Tensor, generator: Generator) -> Tensor:
        return sample + torch.rand(3, generator=generator) + random.random()


SIZES = [3, 3, 5, 2, 7, 4]


def train(trainer: Streaming, first: int, last: int, state: Any = None, sizes: Any = SIZES) -> Streaming:
    """From `first` to `last`, resumed from a state and a generator; measured and saved after each step."""
    seed_generators(1)
    trainer.setup({"bs": sizes[max(first - 1, 0)]} if sizes else {})
    if state is not None:
        trainer.load_state_dict(state[0])
        torch.set_rng_state(state[1])
    for step in range(first, last):
        trainer.setup({"bs": sizes[step]} if sizes else {})
        trainer.train()
        trainer.evaluate()
        trainer.state_dict()
    return trainer


def saved_state(trainer: Streaming) -> list[Any]:
    return [deepcopy(trainer.state_dict()), torch.get_rng_state()]


def assert_split_equals_whole(make: Any, broken: int, steps: int = len(SIZES), sizes: Any = SIZES) -> None:
    with one_thread():
        seed_generators(0)
        whole = train(make(), 0, steps, sizes=sizes)
        end = saved_state(whole)
        seed_generators(0)
        half = train(make(), 0, broken, sizes=sizes)
        middle = saved_state(half)
        assert_plain(middle[0])
        for there in (make(), whole):  # another one, and one that was elsewhere
            resumed = train(there, broken, steps, middle, sizes)
            assert_equal(saved_state(resumed), end)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    broken=st.integers(1, len(SIZES) - 1),
    length=st.integers(7, 40),
    kind=st.sampled_from([Streaming, Changed]),
    how=st.sampled_from([{}, {"drop_last": True}, {"micro_batch_size": 2}, {"shards": 2}]),
)
def test_split_equals_whole(broken: int, length: int, kind: type[Streaming], how: dict[str, Any]) -> None:
    assert_split_equals_whole(lambda: kind(Buffered(length), **how), broken)


def test_each_pass_has_every_sample_once() -> None:
    trainer = train(Streaming(Buffered(10), batches_per_step=1), 0, 8, sizes=[4] * 8)
    numbers = [int(row[0]) for batch in trainer.seen for row in batch]
    assert [sorted(numbers[first : first + 10]) for first in (0, 10)] == [list(range(10))] * 2
    assert [len(batch) for batch in trainer.seen[:6]] == [4, 4, 2] * 2
    assert (trainer.epoch, trainer.offset) == (2, 8)


def test_samples_too_few_for_a_batch_are_left_out() -> None:
    trainer = train(Streaming(Buffered(10), batches_per_step=1, drop_last=True), 0, 5, sizes=[4] * 5)
    assert [len(batch) for batch in trainer.seen] == [4] * 5 and (trainer.epoch, trainer.offset) == (2, 4)
    with pytest.raises(ValueError, match=r"a pass over a stream .Buffered. gave 10 items, and a batch has 11"):
        train(trainer, 0, 1, sizes=[11])


def test_training_draws_as_if_nothing_was_read() -> None:
    trainer = Changed()
    trainer.loss = lambda batch: trainer.model[0].weight.sum()  # type: ignore[method-assign]
    trainer.setup({})
    before = generators.state("cpu")
    trainer.train()
    assert generators.are_at(before)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"batches_per_step": None}, "of no known length: say batches_per_step"),
        ({"batches_per_step": None, "steps_per_epoch": 3}, "of no known length"),
        ({"num_workers": 2}, "a loader with workers of its own"),
    ],
)
def test_unsupported_streams_are_refused(how: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Streaming(**how)


def test_an_order_that_would_not_be_used_is_refused() -> None:
    class Ordered(Streaming):
        def order(self, generator: Generator) -> Tensor:
            return torch.arange(3)

    with pytest.raises(ValueError, match="`order` would not be called"):
        Ordered()


def test_a_stream_that_is_empty_ends_nowhere_but_in_an_error() -> None:
    with pytest.raises(ValueError, match=r"a pass over a stream \(Buffered\) gave 0 items"):
        train(Streaming(Buffered(0)), 0, 1)


def test_the_number_of_workers_is_kept_with_the_place() -> None:
    state = train(Streaming(Buffered(num_workers=2)), 0, 1).state_dict()
    with pytest.raises(ValueError, match=r"read by 2 workers up to here, and would be by 4 .* belongs in trainer_args"):
        train(Streaming(Buffered(num_workers=4)), 1, 2, (state, torch.get_rng_state()))


def test_a_place_in_other_data_is_refused() -> None:
    class Indexed(Streaming):
        def __init__(self) -> None:
            super().__init__(list(torch.ones(9, 3)))

    for one, other in ((Indexed(), Streaming()), (Streaming(), Indexed())):
        with pytest.raises(ValueError, match="data was read in another way: begin the study anew"):
            train(other, 1, 2, saved_state(train(one, 0, 1)))


def test_models_that_stream_are_not_packed() -> None:
    with pytest.raises(NotPackable, match="its data is a stream"):
        require_packable(train(Streaming(), 0, 1))


# Data sets of other libraries ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("broken", [1, 3])
def test_a_loader_of_torchdata_is_a_stream_of_batches(workers: int, broken: int) -> None:
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    made: list[Streaming] = []

    class Rows(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 11

        def __getitem__(self, index: int) -> Tensor:
            return torch.full((3,), float(index))

    def make() -> Streaming:
        loader = loaders.StatefulDataLoader(Rows(), batch_size=4, shuffle=True, num_workers=workers)
        made.append(Streaming(loader))
        return made[-1]

    try:
        assert_split_equals_whole(make, broken, 4, sizes=None)
        with pytest.raises(ValueError, match="bs: train_data is a loader"):
            made[0].setup({"bs": 2})
        with pytest.raises(ValueError, match="micro_batch_size, shards and drop_last need a stream of samples"):
            Streaming(loaders.StatefulDataLoader(Rows(), batch_size=4), micro_batch_size=2)
    finally:
        for each in made:
            each.close()


@pytest.mark.parametrize("broken", [1, 3, 4])
def test_an_iterable_data_set_of_hugging_face_is_a_stream(broken: int) -> None:
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_dict({"x": [[float(n)] * 3 for n in range(16)]})

    class Rows(Streaming):
        def collate(self, samples: list[Any]) -> Tensor:
            rows = [sample["x"] if isinstance(sample, dict) else sample.tolist() for sample in samples]
            return torch.tensor(rows)

    def make() -> Streaming:
        return Rows(whole.to_iterable_dataset(num_shards=4).shuffle(seed=3, buffer_size=1))

    if broken == 1:
        orders = train(make(), 0, 6, sizes=[4] * 6).seen
        assert not torch.equal(torch.cat(orders[:4]), torch.cat(orders[8:12]))  # it hears of the epoch
    assert_split_equals_whole(make, broken)


def test_a_stream_resumes_at_its_position() -> None:
    whole, half = Stream(Buffered(5), seed=2), Stream(Buffered(5), seed=2)
    numbers = [next(whole).tolist() for _ in range(13)]
    first = [next(half).tolist() for _ in range(5)]  # to the very end of a pass
    other = Stream(Buffered(5), seed=2)
    other.load_state_dict(half.state_dict())
    assert other.state_dict() == half.state_dict()
    assert first + [next(other).tolist() for _ in range(8)] == numbers


def test_data_that_cannot_say_where_it_is_are_no_stream() -> None:
    """A script by itself trained on, and in a study it ended in an AttributeError."""
    with pytest.raises(
        TypeError, match="got a DataLoader: torchdata's StatefulDataLoader takes the place of a DataLoader"
    ):
        Stream(DataLoader([1, 2, 3]), 0)  # type: ignore[arg-type]
