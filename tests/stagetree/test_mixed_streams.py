"""Several streams of data: which samples come next is decided by the places in them, so a break changes nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from resuming import Case, assert_equal, check_resumes, one_thread, seed_generators
from torch import Generator, Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from stagetree import TorchTrainer
from stagetree.sequences import parse
from stagetree.trainer.mixed_streams import MixedStream, Mixture

SIZES = {"code": 5, "math": 8, "web": 11}
KINDS: dict[str, Callable[[Tensor], Any]] = {
    "tensors": TensorDataset,
    "samples": list,
    "streams": lambda rows: Counted(rows),
}
MIXES: list[Any] = ["web", "code", {"mix": {"web": 0.7, "code": 0.3}}, {"mix": {"web": 1, "code": 1, "math": 2}}]


class Counted(IterableDataset[Any]):
    """A stream that draws something for each sample."""

    def __init__(self, rows: Tensor) -> None:
        self.rows, self.next, self.is_loaded = rows, 0, False

    def __iter__(self) -> Iterator[Tensor]:
        self.next = self.next if self.is_loaded else 0
        self.is_loaded = False
        while self.next < len(self.rows):
            self.next += 1
            yield self.rows[self.next - 1] + random.random() / 1000

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next, self.is_loaded = state["next"], True


def rows(name: str) -> Tensor:
    """As many as `SIZES` says, each with the number of its stream and its own."""
    first = torch.full((SIZES[name],), float(sorted(SIZES).index(name)))
    return torch.stack([first, torch.arange(float(SIZES[name]))], 1)


class Mixed(TorchTrainer):
    """A step is two batches."""

    name = "mixed"

    def __init__(
        self, *, seed: int = 0, device: str = "cpu", kind: str = "tensors", only: str | None = None, **how: Any
    ) -> None:
        data = {name: KINDS[kind](rows(name)) for name in reversed(SIZES) if only in (None, name)}
        super().__init__(
            seed=seed,
            device=device,
            model=nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.3), nn.Linear(3, 1)),
            train_data=data,
            valid_data=TensorDataset(torch.ones(5, 2)),
            **{"batches_per_step": 2, **how},
        )
        self.seen: list[Tensor] = []

    def make_optimizer(self, hp: dict[str, Any]) -> Optimizer:
        return SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def transform_batch(self, batch: Any, generator: Generator) -> Any:
        found = batch[0] if isinstance(batch, list) else batch
        self.seen.append(found.clone())
        return found + torch.rand(found.shape, generator=generator)

    def loss(self, batch: Any) -> Tensor:
        found = batch[0] if isinstance(batch, list) else batch
        return self.model(found / 10).square().mean()


class Noisy(Mixed):
    def transform(self, sample: Tensor, generator: Generator) -> Tensor:
        return sample + torch.rand(2, generator=generator) / 1000 + random.random() / 1000


def value(written: Any) -> Any:
    return parse(written).at(0)


def train(trainer: Mixed, data: list[Any], sizes: list[int], first: int = 0, state: Any = None) -> list[Any]:
    """From step `first` to the end, as a runner does it: the state, and the generator's."""
    trainer.setup({"data": value(data[max(first - 1, 0)]), "bs": sizes[max(first - 1, 0)]})
    if state is not None:
        trainer.load_state_dict(state[0])
        torch.set_rng_state(state[1])
    for each, size in zip(data[first:], sizes[first:], strict=True):
        trainer.setup({"data": value(each), "bs": size})
        trainer.train()
        trainer.evaluate()
    return [deepcopy(trainer.state_dict()), torch.get_rng_state()]


steps = st.lists(st.tuples(st.sampled_from(MIXES), st.integers(1, 9)), min_size=2, max_size=6)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(steps, st.integers(1, 5), st.sampled_from([{}, {"micro_batch_size": 2}, {"shards": 2}]))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("of", [Mixed, Noisy])
def test_a_split_equals_the_whole(
    of: type[Mixed], kind: str, plan: list[tuple[Any, int]], broken: int, how: dict[str, Any]
) -> None:
    """For any mix and sizes of batches: in another object, and in one that was at another place."""
    data, sizes = [each for each, _ in plan], [max(size, 2 if how else 1) for _, size in plan]
    broken = min(broken, len(plan) - 1)
    with one_thread():
        seed_generators(0)
        whole = of(kind=kind, **how)
        end = train(whole, data, sizes)
        seed_generators(0)
        middle = train(of(kind=kind, **how), data[:broken], sizes[:broken])
        for there in (of(kind=kind, **how), whole):
            seed_generators(9)
            assert_equal(train(there, data, sizes, broken, middle), end)


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"kind": "samples", "num_workers": 1}, {"kind": "streams"}])
def test_through_a_process(tmp_path: Path, how: dict[str, Any]) -> None:
    """And what processes have read ahead of other shares is not learned from."""
    data = {"family": "values", "values": ["web", MIXES[2], {"mix": {"web": 1, "math": 1}}], "milestones": [2, 4]}
    seeds = (
        {} if how.get("kind") == "streams" else {"data_seed": {"family": "values", "values": [0, 3], "milestones": [5]}}
    )
    check_resumes(Case(__file__, "Noisy", how, {"bs": 4, "data": data, **seeds}, broken=3, steps=6), tmp_path)


@settings(max_examples=50)
@given(
    st.dictionaries(st.sampled_from("abcde"), st.integers(1, 100), min_size=1),
    st.integers(0, 2**40),
    st.integers(1, 2000),
    st.integers(0, 9),
)
def test_any_samples_in_a_row_have_the_shares(weights: dict[str, int], seen: int, number: int, seed: int) -> None:
    mixture = Mixture("abcdef", seed)
    mixture.mix(value({"mix": weights}))
    mixture.load_state_dict({"seen": seen, "taken": dict.fromkeys("abcdef", 0)})
    streams = mixture.following(number)
    for each, name in enumerate(mixture.names):
        assert abs((streams == each).sum() - number * weights.get(name, 0) / sum(weights.values())) < 6


def test_a_pass_over_a_stream_gives_each_of_its_samples() -> None:
    """And the order of a stream does not depend on the others in the mix."""
    orders = []
    for mixed in ("web", MIXES[2], MIXES[3]):
        trainer = Mixed()
        train(trainer, [mixed] * 20, [5] * 20)
        web = [int(row[1]) for row in torch.cat(trainer.seen) if row[0] == 2]
        orders.append(web[:22])
    assert sorted(orders[0][:11]) == sorted(orders[0][11:]) == list(range(11))
    assert orders[0] == orders[1] == orders[2] and orders[0][:11] != orders[0][11:]


def test_noise_is_new_in_each_pass() -> None:
    trainer = Noisy(kind="samples")
    train(trainer, ["code"] * 3, [5] * 3)
    rows_seen = torch.cat(trainer.seen)
    assert len({tuple(row.tolist()) for row in rows_seen}) == len(rows_seen) == 30


def test_a_data_seed_decides_order_and_mix() -> None:
    seen = []
    for seed in (0, 7, 7):
        trainer = Mixed()
        trainer.setup({"data_seed": seed})
        train(trainer, [MIXES[3]] * 2, [8, 8])
        seen.append(torch.cat(trainer.seen))
    assert torch.equal(seen[1], seen[2]) and not torch.equal(seen[0], seen[1])


def test_loaders_are_mixed_by_batches() -> None:
    class Loader(DataLoader[Any]):
        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    mixed = MixedStream({name: Loader(list(rows(name)), batch_size=2) for name in SIZES}, 0)
    mixed.mix(value(MIXES[2]))
    batches = [next(mixed) for _ in range(100)]
    assert {len(set(batch[:, 0].tolist())) for batch in batches} == {1}
    assert sum(batch[0, 0] == 2 for batch in batches) == pytest.approx(70, abs=1)


@pytest.mark.parametrize(
    ("say", "sentence"),
    [
        (lambda: Mixed().setup({"data": "wbe"}), "data must name streams of train_data, code, math, web, not 'wbe'"),
        (lambda: Mixed().setup({"data": 3}), "data must be the name of a stream, or a mix such as .*, not 3"),
        (lambda: Mixed().setup({"data": "web:0.7,code:0.3"}), "data must be a mix such as .*, not 'web:0.7,code:0.3'"),
        (lambda: Mixed().train(), "train_data has the streams code, math, web: the hyper-parameter data must say"),
        (lambda: Mixed(batches_per_step=None), "several streams, of which no epoch is made: say batches_per_step"),
        (lambda: Mixed(kind="streams", batches_per_step=None), "of no known length: say batches_per_step"),
        (lambda: Mixed(kind="streams").setup({"data_seed": 1}), "data_seed: train_data is a stream"),
    ],
)
def test_impossible_streams_are_refused(say: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        say()


def test_unmixable_data_is_refused() -> None:
    class Other(Mixed):
        def __init__(self, data: Any) -> None:
            TorchTrainer.__init__(
                self, seed=0, device="cpu", model=nn.Linear(2, 1), train_data=data, valid_data=[1], batches_per_step=1
            )

    one, other = TensorDataset(torch.ones(3, 2)), TensorDataset(torch.ones(3, 4))
    with pytest.raises(ValueError, match="one shape and type, and web differs from code"):
        Other({"web": other, "code": one})
    with pytest.raises(ValueError, match="the stream code of train_data holds no samples"):
        Other({"web": one, "code": []})
    with pytest.raises(TypeError, match="the stream web of train_data, of kind Counted, has no index, and others have"):
        Other({"web": Counted(torch.ones(3, 2)), "code": one})
    with pytest.raises(ValueError, match="name a stream by a string without , and :"):
        Other({"web:": one})
    alone = Other(one)
    with pytest.raises(ValueError, match="data: train_data has no names of streams: give a dict"):
        alone.setup({"data": "web"})
    (state, _), other_streams = train(Mixed(), ["web"], [4]), Mixed(only="web")
    other_streams.setup({"bs": 4})
    with pytest.raises(ValueError, match="the checkpoint is of the streams code, math, web, not web: begin anew"):
        other_streams.load_state_dict(state)


def test_one_stream_needs_no_word_and_has_the_bits_of_its_name() -> None:
    said, unsaid = Mixed(), Mixed(only="web")
    train(said, ["web"] * 2, [4, 4])
    unsaid.setup({"bs": 4})
    for _ in range(2):
        unsaid.train()
    assert torch.equal(torch.cat(said.seen), torch.cat(unsaid.seen))
