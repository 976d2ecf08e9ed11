"""`TorchTrainer` in shards: any number of ranks has the same bits, also when the number changes during training."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from bench import Bench
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from in_shards import InShards
from torch import Tensor

from stagetree.runtime.failures import TrainerFailed


@pytest.mark.slow
@pytest.mark.parametrize("args", [{}, {"precision": "bf16"}, {"micro_batch_size": 5}, {"num_workers": 1}])
def test_one_two_and_four_ranks_have_the_same_bits(bench: Bench, args: dict[str, Any]) -> None:
    found = [bench.train([(ranks, 9)], args, shards=8) for ranks in (1, 2, 4)]
    assert found[0] == found[1] == found[2]


@pytest.mark.slow
def test_each_stage_may_have_another_number_of_ranks(bench: Bench) -> None:
    alone = bench.train([(1, 12)], {}, shards=4)
    assert bench.train([(1, 3), (4, 5), (2, 8), (1, 9), (4, 12)], {}, shards=4) == alone


def test_the_number_of_shards_is_part_of_what_is_trained(bench: Bench) -> None:
    assert bench.train([(1, 3)], {}, shards=4) != bench.train([(1, 3)], {}, shards=8)


ARGS = st.fixed_dictionaries(
    {
        "samples": st.integers(20, 60),
        "width": st.integers(1, 5),
        "dropout": st.sampled_from([0.0, 0.3]),
        "norm": st.sampled_from(["batch", "layer"]),
        "counts": st.booleans(),
        "clip": st.sampled_from([None, 0.1]),
    },
    optional={
        "precision": st.just("bf16"),
        "micro_batch_size": st.integers(1, 9),
        "drop_last": st.just(True),
        "average_decay": st.just(0.5),
    },
)
STAGES = st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 2)), min_size=1, max_size=3)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    args=ARGS, sizes=st.tuples(st.integers(2, 20), st.integers(2, 20)), stages=STAGES, shards=st.sampled_from([4, 16])
)
def test_any_stages_on_any_ranks_have_the_bits_of_one(
    bench: Bench, args: dict[str, Any], sizes: tuple[int, int], stages: list[tuple[int, int]], shards: int
) -> None:
    way, end = [], 0
    for ranks, steps in stages:
        way.append((ranks, end := end + steps))
    hp = {"lr": 0.01, "bs": {"family": "values", "values": list(sizes), "milestones": [2]}}
    assert bench.train(way, args, hp, shards=shards) == bench.train([(1, end)], args, hp, shards=shards)


# ------------------------------------------------------------------------------------------------------- by itself


Gradients = dict[str, Tensor]


def gradients(**args: Any) -> Gradients:
    """The gradients after a batch of 37 samples, in a model without layers that mix samples."""
    torch.manual_seed(0)
    trainer = InShards(seed=0, device="cpu", norm="layer", dropout=0.0, clip=None, **args)
    trainer.transform_batch = lambda batch, generator: batch  # type: ignore[method-assign]
    found = Gradients()

    def keep() -> None:
        found.update(
            (name, each.grad.clone()) for name, each in trainer.model.named_parameters() if each.grad is not None
        )

    trainer.after_step = keep  # type: ignore[method-assign]
    trainer.setup({"lr": 0.01, "bs": 37})
    trainer.train()
    return found


@pytest.fixture(scope="module")
def whole() -> Gradients:
    """Of the batch at once."""
    return gradients()


@pytest.mark.parametrize("args", [{"shards": 4}, {"shards": 64}, {"shards": 8, "counts": True, "micro_batch_size": 2}])
def test_the_gradient_is_that_of_the_batch(args: dict[str, Any], whole: Gradients) -> None:
    found = gradients(**args)
    assert whole.keys() == found.keys()
    for name, gradient in whole.items():
        torch.testing.assert_close(found[name], gradient, msg=name)


def test_buffers_see_batches_and_not_shards() -> None:
    trainer = InShards(seed=0, device="cpu", shards=8)
    trainer.setup({"lr": 0.01, "bs": 32})
    trainer.train()
    trainer.train()
    buffers = dict(trainer.model.named_buffers())
    assert buffers["norm.num_batches_tracked"] == 2
    assert buffers["mask"].tolist() == [0.0, float("-inf")]
    assert buffers["norm.running_mean"].abs().sum() > 0


def test_training_leaves_the_generators_unchanged() -> None:
    trainer = InShards(seed=0, device="cpu", shards=2)
    trainer.setup({"lr": 0.01, "bs": 32})
    before = torch.get_rng_state()
    trainer.train()
    assert torch.equal(torch.get_rng_state(), before)


def test_too_little_memory_gets_advice() -> None:
    trainer = InShards(seed=0, device="cpu", shards=4)
    trainer.setup({"lr": 0.01, "bs": 32})

    def full(batch: Any) -> Any:
        raise MemoryError("no room")

    trainer.loss = full  # type: ignore[method-assign]
    with pytest.raises(MemoryError) as failed:
        trainer.train()
    assert "a shard's 8 samples" in failed.value.__notes__[0] and "More shards than 4" in failed.value.__notes__[0]


def own_batches(self: InShards, batch: Any) -> None:
    """A custom `train_batch`."""


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: InShards(seed=0, device="cpu", shards=4, norm="sync"), "SyncBatchNorm, whose results depend on"),
        (lambda: InShards(seed=0, device="cpu", shards=3), "shards must be 1, 2, 4, 8"),
        (lambda: type("Own", (InShards,), {"train_batch": own_batches})(seed=0, device="cpu", shards=4), "train_batch"),
    ],
)
def test_inexact_trainers_are_refused_in_a_sentence(make: Callable[[], InShards], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_several_ranks_need_shards(bench: Bench) -> None:
    with pytest.raises(TrainerFailed, match="a trial on several devices needs shards"):
        bench.begin(2, {}, shards=0)
    with pytest.raises(TrainerFailed, match="one at least for each of 4 ranks"):
        bench.begin(4, {}, shards=2)


def test_a_metric_in_shards_equals_the_whole_metric() -> None:
    """The same model, measured in other parts."""
    metrics = []
    for shards in (None, 8):
        torch.manual_seed(0)
        metrics.append(InShards(seed=0, device="cpu", shards=shards).evaluate())
    assert metrics[0] == pytest.approx(metrics[1])
    assert json.dumps(metrics[0]["val_accuracy"]) == json.dumps(metrics[1]["val_accuracy"])
