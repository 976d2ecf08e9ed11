"""Reading: any number of workers gives the same batches, also from the middle of an epoch, and does not show."""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from resuming import assert_equal, one_thread, seed_generators
from torch import Generator, Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from stagetree import TorchTrainer

MADE: list[TorchTrainer] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
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


def trained(first: int, last: int, state: Any = None, **how: Any) -> Reading:
    """From `first` to `last`, going on from a state and a generator."""
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


def kept(trainer: Reading) -> tuple[Any, Tensor]:
    return deepcopy(trainer.state_dict()), torch.get_rng_state()


@pytest.mark.parametrize("how", [{"num_workers": 2}, {"num_workers": 3, "prefetch_factor": 1}])
@pytest.mark.parametrize("more", [{"batches_per_step": 4}, {"batches_per_step": 4, "micro_batch_size": 2}])
def test_workers_change_nothing(how: dict[str, Any], more: dict[str, Any]) -> None:
    with one_thread():
        alone = trained(0, 6, **more)
        ahead = trained(0, 6, **how, **more)
        assert all(map(torch.equal, alone.seen, ahead.seen)) and len(alone.seen) == len(ahead.seen)
        assert_equal(kept(alone)[0], kept(ahead)[0])
        middle = kept(trained(0, 3, **how, **more))
        assert_equal(kept(trained(3, 6, middle, **how, **more))[0], kept(ahead)[0])
        assert_equal(kept(trained(3, 6, middle, **more))[0], kept(ahead)[0])


class Silent(Reading):
    """Draws nothing itself."""

    def loss(self, batch: Any) -> Tensor:
        return self.model[0].weight.sum()

    def transform_batch(self, batch: Any, generator: Generator) -> Any:
        return batch


@pytest.mark.parametrize("how", [{}, {"num_workers": 2}, {"data": TensorDataset(torch.zeros(23, 4))}])
def test_training_draws_as_if_nothing_was_read(how: dict[str, Any]) -> None:
    def drawn() -> Any:
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    trainer = Silent(**how)
    trainer.setup({"lr": 0.1})
    before = drawn()
    trainer.train()
    trainer.evaluate()
    assert drawn() == before


def test_a_hyper_parameter_of_the_transform_reaches_the_workers() -> None:
    trainer = trained(0, 4, num_workers=2, batches_per_step=2)
    assert trainer.seen[-1][:, 3].min() >= 2.0 > trainer.seen[-3][:, 3].min()


def test_what_a_worker_raises_is_raised_here() -> None:
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


def test_what_is_too_little_for_a_batch_is_left_out() -> None:
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
