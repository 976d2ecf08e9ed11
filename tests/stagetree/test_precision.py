"""Precision, averages, compiling and shapes: all of it resumes to the bit."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from resuming import assert_equal, one_thread, seed_generators
from test_sample_loading import CHANGES, Reading, close_trainers  # noqa: F401 - a fixture
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import SGD, Optimizer
from torch.utils.data import TensorDataset

from stagetree import TorchTrainer


def split_and_whole(make: Any, values: list[dict[str, Any]], broken: int) -> tuple[Any, Any]:
    """The state after all steps without a break, and with one, after which another object continues."""

    def run(trainer: TorchTrainer, steps: range) -> TorchTrainer:
        for step in steps:
            if values[step]:
                trainer.setup(values[step])
            trainer.train()
        return trainer

    with one_thread():
        seed_generators(1)
        whole = run(make(), range(len(values)))
        seed_generators(1)
        first = run(make(), range(broken))
        state, chance = deepcopy(first.state_dict()), torch.get_rng_state()
        seed_generators(99)
        second = make()
        second.setup({name: value for step in range(broken) for name, value in values[step].items()})
        second.load_state_dict(state)
        torch.set_rng_state(chance)
        return whole.state_dict(), run(second, range(broken, len(values))).state_dict()


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        {"precision": "bf16"},
        {"precision": "fp16"},
        {"average_decay": 0.9, "clip_grad_norm": 0.5},
        {"precision": "bf16", "micro_batch_size": 2, "num_workers": 2, "drop_last": True},
    ],
)
def test_a_break_changes_nothing(how: dict[str, Any]) -> None:
    whole, split = split_and_whole(lambda: Reading(batches_per_step=2, **how), CHANGES, 3)
    assert_equal(split, whole)
    assert ("scaler" in whole) == (how.get("precision") == "fp16") and ("average" in whole) == ("average_decay" in how)


@pytest.mark.slow
def test_compiled_names_and_results_stay() -> None:
    whole, split = split_and_whole(lambda: Reading(batches_per_step=2, compile=True), CHANGES[:2], 1)
    assert_equal(split, whole)
    assert "0.weight" in whole["model"]


def test_the_scale_of_losses_is_in_the_state() -> None:
    trainer = Reading(precision="fp16", batches_per_step=1)
    trainer.setup({"lr": 0.1})
    trainer.loss = lambda batch: trainer.model(batch).sum() * float("inf")  # type: ignore[method-assign]
    before = trainer.model[0].weight.detach().clone()
    trainer.train()
    assert trainer.state_dict()["scaler"]["scale"] == 2.0**15  # half of its first value
    assert torch.equal(trainer.model[0].weight, before)


def test_an_average_is_measured_and_disturbs_nothing() -> None:
    trainer = Reading(average_decay=0.5, batches_per_step=1)
    trainer.setup({"lr": 0.1})
    start = trainer.model[0].weight.detach().clone()
    trainer.train()
    end = trainer.model[0].weight.detach().clone()
    seen: list[Tensor] = []
    trainer.measure = lambda batch: seen.append(trainer.model[0].weight.detach().clone()) or {"x": 0.0}  # type: ignore
    trainer.evaluate()
    torch.testing.assert_close(seen[0], (start + end) / 2)
    assert torch.equal(trainer.model[0].weight, end)


class Shaped(TorchTrainer):
    """Its width is a hyper-parameter."""

    name = "shaped"

    def __init__(self, *, seed: int = 0, device: str = "cpu") -> None:
        data = TensorDataset(torch.arange(12.0).view(12, 1) / 12)
        super().__init__(seed=seed, device=device, train_data=data, valid_data=data)

    def build(self, hp: dict[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(1, hp["width"]), nn.Dropout(hp.get("dropout", 0.0)), nn.Linear(hp["width"], 1))

    def make_optimizer(self, hp: dict[str, Any]) -> Optimizer:
        return SGD(self.model.parameters(), lr=hp["lr"], momentum=0.9)

    def loss(self, batch: list[Tensor]) -> Tensor:
        return mse_loss(self.model(batch[0]), batch[0])


def test_an_architecture_is_a_hyper_parameter() -> None:
    whole, split = split_and_whole(Shaped, [{"lr": 0.1, "width": 5, "dropout": 0.1}, {"lr": 0.2}, {}], 2)
    assert_equal(split, whole)
    assert whole["model"]["0.weight"].shape == (5, 1)


def test_an_object_of_another_shape_takes_a_state() -> None:
    first, used = Shaped(), Shaped()
    first.setup({"lr": 0.1, "width": 5})
    first.train()
    used.setup({"lr": 0.1, "width": 3})
    used.train()
    used.setup({"lr": 0.1, "width": 5})
    used.load_state_dict(deepcopy(first.state_dict()))
    for trainer in (first, used):
        trainer.train()
    assert_equal(used.state_dict(), first.state_dict())


class HalfFrozen(Shaped):
    """Frozen parameters are in no state: they must be the same in each build."""

    def build(self, hp: dict[str, Any]) -> nn.Module:
        model = super().build(hp)
        model[0].weight.register_hook(lambda gradient: gradient * self.frozen)
        self.frozen = torch.randn(hp["width"], 1)
        return model


def test_an_object_builds_as_a_fresh_one_does_wherever_its_generators_are() -> None:
    seed_generators(0)
    first = HalfFrozen()
    first.setup({"lr": 0.1, "width": 5})
    used = HalfFrozen()
    used.setup({"lr": 0.1, "width": 3})
    used.train()
    used.setup({"lr": 0.1, "width": 5})
    assert torch.equal(used.frozen, first.frozen)
    assert_equal(used.model.state_dict(), first.model.state_dict())


def test_a_shape_cannot_change_during_a_trial() -> None:
    trainer = Shaped()
    trainer.setup({"lr": 0.1, "width": 3})
    trainer.train()
    trainer.setup({"width": 5})
    with pytest.raises(ValueError, match=r"dropout, width cannot change during a trial"):
        trainer.train()


def test_a_missing_model_is_reported() -> None:
    class Empty(Shaped):
        build = TorchTrainer.build

    with pytest.raises(ValueError, match="Empty gives no model"):
        Empty().setup({"lr": 0.1})


def test_a_forgotten_call_of_super_is_reported() -> None:
    class Forgot(Shaped):
        def __init__(self) -> None:
            pass

    with pytest.raises(RuntimeError, match=r"must call super\(\).__init__"):
        Forgot().setup({"lr": 0.1})


def test_hooks_are_called() -> None:
    class Hooked(Reading):
        steps = 0

        def after_step(self) -> None:
            self.steps += 1

        def collate(self, samples: list[Tensor]) -> Tensor:
            return torch.stack(samples) * 0

    trainer = Hooked()
    trainer.setup({"lr": 0.1, "bs": 4})
    trainer.train()
    assert trainer.steps == 6 and not any(batch.any() for batch in trainer.seen)
