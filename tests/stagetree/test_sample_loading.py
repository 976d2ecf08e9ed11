"""Reading: any number of workers gives the same batches, also from the middle of an epoch, and does not show."""

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
from resuming import assert_equal, one_thread, seed_generators
from torch import Generator, Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from stagetree import TorchTrainer
from stagetree.trainer import generators, sample_loading
from stagetree.trainer.data_order import Indices, shuffle
from stagetree.trainer.sample_loading import seed_sample

MADE: list[TorchTrainer] = []


@pytest.fixture(autouse=True)
def close_trainers() -> Iterator[None]:
    """No trainer is left to the collector, which would wait for its workers."""
    yield
    while MADE:
        MADE.pop().close()


class Drawn(Dataset[Any]):
    """Each sample draws from every generator there is, as augmentations do."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([index, torch.rand(()).item(), np.random.rand(), random.random()])


class Reading(TorchTrainer):
    name = "reading"

    def __init__(self, *, seed: int = 0, device: str = "cpu", data: Any = None, **how: Any) -> None:
        data = Drawn() if data is None else data
        model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.2), nn.Linear(3, 1))
        super().__init__(seed=seed, device=device, model=model, train_data=data, valid_data=Drawn(), **how)
        self.strength, self.seen = 0.0, list[Tensor]()
        MADE.append(self)

    def make_optimizer(self, hp: dict[str, Any]) -> Optimizer:
        return SGD(self.model.parameters(), lr=hp["lr"])

    def transform(self, sample: Tensor, generator: Generator) -> Tensor:
        return torch.cat([sample[:3], sample[3:] + self.strength + self.epoch + torch.rand(1, generator=generator)])

    def transform_batch(self, batch: Tensor, generator: Generator) -> Tensor:
        self.seen.append(batch.clone())
        return batch / 10

    def loss(self, batch: Tensor) -> Tensor:
        return self.model(batch).square().mean()

    def apply(self, name: str, value: Any) -> None:
        if name == "strength":
            self.strength = value
        else:
            super().apply(name, value)


CHANGES = [{"lr": 0.1, "bs": 4, "strength": 0.0}, {}, {"bs": 7}, {"strength": 2.0}, {"bs": 3}, {}]


def train(first: int, last: int, state: Any = None, **how: Any) -> Reading:
    """From `first` to `last`, resumed from a state and a generator."""
    seed_generators(1)
    trainer = Reading(**how)
    if state is not None:
        trainer.setup({name: value for changes in CHANGES[:first] for name, value in changes.items()})
        trainer.load_state_dict(state[0])
        torch.set_rng_state(state[1])
    for step in range(first, last):
        if CHANGES[step]:
            trainer.setup(CHANGES[step])
        trainer.train()
        trainer.evaluate()
    return trainer


def saved_state(trainer: Reading) -> tuple[Any, Tensor]:
    return deepcopy(trainer.state_dict()), torch.get_rng_state()


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"num_workers": 2}, {"num_workers": 3, "prefetch_factor": 1}])
@pytest.mark.parametrize("more", [{"batches_per_step": 4}, {"batches_per_step": 4, "micro_batch_size": 2}])
def test_workers_change_nothing(how: dict[str, Any], more: dict[str, Any]) -> None:
    with one_thread():
        alone = train(0, 6, **more)
        ahead = train(0, 6, **how, **more)
        assert all(map(torch.equal, alone.seen, ahead.seen)) and len(alone.seen) == len(ahead.seen)
        assert_equal(saved_state(alone)[0], saved_state(ahead)[0])
        middle = saved_state(train(0, 3, **how, **more))
        assert_equal(saved_state(train(3, 6, middle, **how, **more))[0], saved_state(ahead)[0])
        assert_equal(saved_state(train(3, 6, middle, **more))[0], saved_state(ahead)[0])


class Silent(Reading):
    """Draws nothing itself."""

    def loss(self, batch: Any) -> Tensor:
        return self.model[0].weight.sum()

    def transform_batch(self, batch: Any, generator: Generator) -> Any:
        return batch


@pytest.mark.parametrize("how", [{}, {"num_workers": 2}, {"data": TensorDataset(torch.zeros(23, 4))}])
def test_training_draws_as_if_nothing_was_read(how: dict[str, Any]) -> None:
    trainer = Silent(**how)
    trainer.setup({"lr": 0.1})
    before = generators.state("cpu")
    trainer.train()
    trainer.evaluate()
    assert generators.are_at(before)


def test_a_hyper_parameter_of_the_transform_reaches_the_workers() -> None:
    trainer = train(0, 4, num_workers=2, batches_per_step=2)
    assert trainer.seen[-1][:, 3].min() >= 2.0 > trainer.seen[-3][:, 3].min()


def test_an_error_of_a_worker_is_raised() -> None:
    class Torn(Drawn):
        def __getitem__(self, index: int) -> Tensor:
            raise OSError(f"sample {index} is torn")

    trainer = Reading(data=Torn(), num_workers=2)
    trainer.setup({"lr": 0.1})
    with pytest.raises(OSError, match="is torn"):
        trainer.train()


def test_data_that_cannot_be_read_by_index_is_refused() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(())

    with pytest.raises(TypeError, match="Stream is not: the order of the data"):
        Reading(data=Stream())


# How much is a step, and a batch --------------------------------------------------------------------------------------


def sizes(trainer: Reading) -> list[int]:
    return [len(batch) for batch in trainer.seen]


def test_samples_too_few_for_a_batch_are_left_out() -> None:
    trainer = Reading(drop_last=True)
    trainer.setup({"lr": 0.1, "bs": 5})
    for _ in range(2):
        trainer.train()
    assert sizes(trainer) == [5] * 8 and (trainer.epoch, trainer.offset) == (2, 0)
    trainer.setup({"bs": 24})
    with pytest.raises(ValueError, match="a batch has 24 samples, and train_data only 23"):
        trainer.train()


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5])
def test_an_epoch_has_as_many_steps_whatever_the_batch_size(batch_size: int) -> None:
    trainer = Reading(steps_per_epoch=4)
    trainer.setup({"lr": 0.1, "bs": batch_size})
    for step in range(1, 9):
        trainer.train()
        assert trainer.epoch == step // 4 and (step % 4 or trainer.offset == 0)
    assert sum(sizes(trainer)) == 46


def test_more_than_a_step_in_a_batch_is_refused() -> None:
    trainer = Reading(steps_per_epoch=4)
    trainer.setup({"lr": 0.1, "bs": 6})
    with pytest.raises(ValueError, match="a batch of 6 is more than 4 steps an epoch allow"):
        trainer.train()
    with pytest.raises(ValueError, match="not both"):
        Reading(steps_per_epoch=4, batches_per_step=1)


def test_parts_of_a_batch_have_its_gradient() -> None:
    ends = []
    for micro in (None, 2, 3):
        seed_generators(1)
        trainer = Reading(micro_batch_size=micro, batches_per_step=1)
        trainer.model[1].p = 0.0
        trainer.setup({"lr": 0.1, "bs": 7})
        trainer.train()
        ends.append(trainer.model[0].weight.detach().clone())
        assert sizes(trainer) == {None: [7], 2: [2, 2, 2, 1], 3: [3, 3, 1]}[micro]
        assert trainer.offset == 7
    torch.testing.assert_close(ends[0], ends[1])
    torch.testing.assert_close(ends[0], ends[2])


def test_an_order_of_ones_own() -> None:
    class Weighted(Reading):
        def order(self, generator: Generator) -> Tensor:
            return torch.multinomial(torch.arange(23.0), 10, replacement=True, generator=generator)

    trainer = Weighted()
    trainer.setup({"lr": 0.1, "bs": 4})
    trainer.train()
    assert sizes(trainer) == [4, 4, 2] and trainer.epoch == 1
    assert not any((batch[:, 0] == 0).any() for batch in trainer.seen)


# The order, and draws -------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(samples=st.integers(1, 5_000), seed=st.integers(0, 2**40), cut=st.integers(0, 5_000), size=st.integers(1, 64))
def test_an_order_that_takes_no_memory_is_a_permutation(samples: int, seed: int, cut: int, size: int) -> None:
    def make_order() -> Indices:
        return shuffle(samples, Generator().manual_seed(seed), large=1)

    whole = make_order()[:].tolist()
    assert sorted(whole) == list(range(samples)) and len(make_order()) == samples
    assert make_order()[cut : cut + size].tolist() == whole[cut : cut + size]


def test_such_an_order_is_as_good_as_one_that_is_drawn() -> None:
    """Where a sample comes is uniform over seeds, and so is what follows it: chi-squared, far beyond 1 in a million."""
    begins = torch.stack([shuffle(32, Generator().manual_seed(seed), large=1)[:2] for seed in range(2_000)])
    for counts in (
        begins[:, 0].bincount(minlength=32),
        ((begins[:, 1] - begins[:, 0]) % 32).bincount(minlength=32)[1:],
    ):
        expected = 2_000 / len(counts)
        assert ((counts - expected) ** 2 / expected).sum() < 90
    numbers = shuffle(100_000, Generator().manual_seed(0), large=1)[:].double()
    together = torch.corrcoef(torch.stack([numbers[:-1], numbers[1:]]))[0, 1]
    assert together.abs() < 0.02


def test_a_small_data_set_has_the_order_that_it_always_had() -> None:
    drawn = torch.randperm(1_000, generator=Generator().manual_seed(5))
    assert torch.equal(shuffle(1_000, Generator().manual_seed(5))[:], drawn)


class Many:
    """So large that a permutation would take 8 GiB."""

    def __len__(self) -> int:
        return 2**30

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([index % 7, 0.1, 0.2, 0.3])


def test_a_large_data_set_is_gone_through_without_a_permutation() -> None:
    half = train(0, 3, data=Many(), batches_per_step=2)
    resumed = train(3, 6, saved_state(half), data=Many(), batches_per_step=2)
    whole = train(0, 6, data=Many(), batches_per_step=2)
    assert_equal(saved_state(resumed)[0], saved_state(whole)[0])
    old = {name: value for name, value in half.state_dict().items() if name != "order"}
    with pytest.raises(ValueError, match="another order of the data than this version has"):
        whole.load_state_dict(old)


class Counted(Dataset[Any]):
    """Notes how it is read."""

    def __init__(self) -> None:
        self.one_by_one, self.together = list[int](), list[list[int]]()

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> Tensor:
        self.one_by_one.append(index)
        return self.sample(index)

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        self.together.append(indices)
        return [self.sample(index) for index in indices]

    def sample(self, index: int) -> Tensor:
        return torch.arange(4.0) + index


class Still(Reading):
    transform = TorchTrainer.transform


def test_samples_that_draw_nothing_are_read_together_and_without_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    data, seeds = Counted(), list[int]()
    monkeypatch.setattr(sample_loading, "seed_sample", lambda number: (seeds.append(number), seed_sample(number)))
    trainer = Still(data=data, batches_per_step=1)
    trainer.setup({"lr": 0.1, "bs": 4})
    for _ in range(3):
        trainer.train()
    first = [int(row[0]) for row in trainer.seen[0]]
    assert data.one_by_one == first and [len(each) for each in data.together] == [1, 4, 4]
    assert len(seeds) == len(first) + 1
    rows = [[int(row[0]) for row in batch] for batch in trainer.seen[1:]]
    assert rows == data.together[1:]


@pytest.mark.parametrize(
    "draw", [torch.rand, lambda n: torch.tensor(np.random.rand()), lambda n: torch.tensor(random.random())]
)
def test_late_draws_are_unchanged(draw: Any) -> None:
    """The first samples draw nothing; how they were read must not show."""

    class Late(Counted):
        def sample(self, index: int) -> Tensor:
            return torch.full((4,), float(draw(1)) if index % 5 == 0 else float(index))

    class OneByOne(Late):
        __getitems__ = None

    def seen_samples(data: Any, **how: Any) -> Tensor:
        trainer = Still(data=data, batches_per_step=6, **how)
        trainer.setup({"lr": 0.1, "bs": 4})
        trainer.train()
        return torch.cat(trainer.seen)

    assert torch.equal(seen_samples(Late()), seen_samples(OneByOne(), micro_batch_size=1))


def test_a_requested_seed_counts_as_a_draw() -> None:
    class Asking(Counted):
        def sample(self, index: int) -> Tensor:
            return torch.tensor(np.random.default_rng(torch.initial_seed()).random(4), dtype=torch.float32)

    trainers = [Still(data=Asking(), batches_per_step=5, micro_batch_size=size) for size in (None, 1)]
    for trainer in trainers:
        trainer.setup({"lr": 0.1, "bs": 4})
        trainer.train()
    assert torch.equal(*(torch.cat(trainer.seen) for trainer in trainers))
