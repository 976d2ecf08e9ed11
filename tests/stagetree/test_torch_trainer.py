"""What `TorchTrainer` promises: the place in the data is two integers, and nothing else is lost or disturbed."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from resuming import Case, assert_equal, check_resumes
from torch import Generator, Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import SGD, Adam, Optimizer
from torch.utils.data import TensorDataset

from stagetree import TorchTrainer


class Tiny(TorchTrainer):
    """Twenty-three samples; dropout and noise make every batch matter."""

    name = "tiny"

    def __init__(self, *, seed: int, device: str, in_memory: bool = True, **how: Any) -> None:
        numbers = torch.arange(23.0).unsqueeze(1)
        data: Any = TensorDataset(numbers, numbers / 10)
        if not in_memory:
            data = [(x, y) for x, y in data]
        super().__init__(
            seed=seed,
            device=device,
            model=nn.Sequential(nn.Linear(1, 8), nn.LayerNorm(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1)),
            train_data=data,
            valid_data=data,
            **how,
        )
        self.seen: list[list[int]] = []
        self.noise: dict[tuple[int, int], float] = {}

    def make_optimizer(self, hp: dict[str, Any]) -> Optimizer:
        kind = Adam if hp.get("optimizer") == "adam" else SGD
        return kind(self.model.parameters(), lr=hp["lr"])

    def loss(self, batch: list[Tensor]) -> Tensor:
        return mse_loss(self.model(batch[0]), batch[1])

    def transform(self, sample: Any, generator: Generator) -> Any:
        noise = torch.randn(1, generator=generator)
        self.noise[self.epoch, int(sample[0])] = float(noise)
        return sample[0], sample[1] + noise / 100

    def transform_batch(self, batch: list[Tensor], generator: Generator) -> list[Tensor]:
        self.seen.append([int(x) for x in batch[0]])
        return [batch[0], batch[1] + torch.randn(1, generator=generator) / 100]


def tiny(**args: Any) -> Tiny:
    torch.manual_seed(0)
    trainer = Tiny(seed=0, device="cpu", **args)
    trainer.setup({"lr": 0.1, "bs": 4})
    return trainer


# Resuming -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_memory", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_break_changes_nothing(tmp_path: Path, in_memory: bool) -> None:
    hp = {
        "lr": {"family": "warmup", "steps": 4, "then": {"family": "cosine", "init": 0.1, "min": 0.01, "period": 4}},
        "batch_size": {"family": "values", "values": [4, 7, 2], "milestones": [2, 5]},
        "momentum": {"family": "values", "values": [0.9, 0.8], "milestones": [3]},
        "optimizer": {"family": "values", "values": ["sgd", "adam"], "milestones": [5]},
    }
    case = Case(__file__, "Tiny", {"batches_per_step": 4, "in_memory": in_memory}, hp, broken=4, steps=8)
    check_resumes(case, tmp_path)


@pytest.mark.parametrize("broken", range(1, 6))
def test_a_break_anywhere_changes_nothing(broken: int) -> None:
    def train(trainer: Tiny, steps: range) -> Tiny:
        for step in steps:
            trainer.setup({"bs": [4, 4, 9, 9, 3, 3][step]})
            trainer.train()
        return trainer

    whole = train(tiny(batches_per_step=3), range(6))
    before = train(tiny(batches_per_step=3), range(broken))
    after = tiny(batches_per_step=3)
    after.load_state_dict(deepcopy(before.state_dict()))
    train(after, range(broken, 6))
    assert before.seen + after.seen == whole.seen
    assert (after.epoch, after.offset) == (whole.epoch, whole.offset)


class Grouped(Tiny):
    """Its first layer learns more slowly."""

    name = "grouped"

    def make_optimizer(self, hp: dict[str, Any]) -> Optimizer:
        first, *rest = self.model
        groups = [{"params": first.parameters(), "lr": hp["lr"] / 10}, {"params": nn.ModuleList(rest).parameters()}]
        return SGD(groups, lr=hp["lr"], momentum=0.5)


@pytest.mark.parametrize(("trainer", "optimizer"), [("Tiny", "sgd"), ("Tiny", "adam"), ("Grouped", "sgd")])
def test_a_continuation_after_a_warm_up_holds_what_training_without_a_break_holds(
    tmp_path: Path, trainer: str, optimizer: str
) -> None:
    """Once every study with a warm-up had to train a whole trial again: this class held the names of its last set-up,
    and an optimizer the defaults of the step at which it was made, or lists for the tuples of Adam.
    """
    rising = {"family": "values", "values": [0.1, 0.2], "milestones": [1]}
    falling = {"family": "values", "values": [0.9, 0.8], "milestones": [1]}
    hp = {"lr": rising, "bs": 4, "momentum": falling, "weight_decay": rising, "optimizer": optimizer}
    check_resumes(Case(__file__, trainer, {"batches_per_step": 2}, hp, broken=3, steps=5), tmp_path)


def test_a_state_that_was_loaded_stays_as_it_was() -> None:
    trainer = tiny()
    trainer.setup({"momentum": 0.9})
    trainer.train()
    state = deepcopy(trainer.state_dict())
    ends = []
    for _ in range(2):
        torch.manual_seed(1)
        trainer.load_state_dict(state)
        trainer.train()
        ends.append(trainer.model[0].weight.detach().clone())
    assert torch.equal(*ends)


# The order of the data -----------------------------------------------------------------------------------------------


def test_every_sample_is_seen_once_an_epoch_whatever_the_batch_sizes() -> None:
    trainer, plain = tiny(batches_per_step=1), tiny()
    for batch_size in [4, 4, 7, 1, 100, 5, 100]:
        trainer.setup({"bs": batch_size})
        trainer.train()
    assert [len(batch) for batch in trainer.seen] == [4, 4, 7, 1, 7, 5, 18]
    assert (trainer.epoch, trainer.offset) == (2, 0)
    plain.train()
    plain.train()
    order = [[sample for batch in seen for sample in batch] for seen in (trainer.seen, plain.seen)]
    assert order[0] == order[1]
    assert sorted(order[0][:23]) == sorted(order[0][23:]) == list(range(23))
    assert order[0][:23] != order[0][23:]


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"in_memory": True}, {"in_memory": False}, {"in_memory": False, "num_workers": 1}])
def test_another_data_seed_continues_at_the_same_position(tmp_path: Path, how: dict[str, Any]) -> None:
    """In the middle of an epoch, through a break; and what processes have read ahead is not learned from."""
    hp = {"lr": 0.1, "bs": 4, "data_seed": {"family": "values", "values": [0, 7, 0], "milestones": [2, 5]}}
    check_resumes(Case(__file__, "Tiny", {"batches_per_step": 4, **how}, hp, broken=3, steps=6), tmp_path)


def test_a_data_seed_decides_order_and_noise() -> None:
    """That of the study is its seed; another gives what another seed gives, of the data alone."""
    plain, same, other, seeded = tiny(), tiny(), tiny(), Tiny(seed=7, device="cpu")
    for trainer, hp in ((same, {"data_seed": 0}), (other, {"data_seed": 7}), (seeded, {"lr": 0.1, "bs": 4})):
        trainer.setup(hp)
    for trainer in (plain, same, other, seeded):
        torch.manual_seed(3)
        trainer.train()
    assert plain.seen == same.seen != other.seen == seeded.seen
    weights = [trainer.model[0].weight for trainer in (plain, same, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    with pytest.raises(ValueError, match="data_seed must be a whole number from 0 on, not -1"):
        plain.setup({"data_seed": -1})


class Windows(Tiny):
    """Samples of six positions; the learned ones are noted."""

    name = "windows"

    def __init__(self, *, seed: int, device: str, **how: Any) -> None:
        super().__init__(seed=seed, device=device, **how)
        data = TensorDataset(torch.arange(23.0 * 6).reshape(23, 6, 1) / 100, torch.arange(23.0))
        given = {"seed": seed, "device": device, "train_data": data, "valid_data": data}
        TorchTrainer.__init__(self, model=self.model, **given, **how)

    def loss(self, batch: list[Tensor]) -> Tensor:
        return mse_loss(self.model(batch[0]), batch[0])

    def transform_batch(self, batch: list[Tensor], generator: Generator) -> list[Tensor]:
        self.seen.append(list(batch[0].shape) + list(batch[1].shape))
        return batch


@pytest.mark.slow
def test_the_length_of_sequences_changes_on_the_way(tmp_path: Path) -> None:
    """Through a break; the place in the data, labels and metrics are as without."""
    hp = {"lr": 0.1, "bs": 4, "seq_len": {"family": "values", "values": [2, 6, 4], "milestones": [2, 4]}}
    check_resumes(Case(__file__, "Windows", {"batches_per_step": 2}, hp, broken=3, steps=6), tmp_path)
    trainer = Windows(seed=0, device="cpu", batches_per_step=1)
    for length in (2, 6):
        trainer.setup({"lr": 0.1, "bs": 4, "seq_len": length})
        trainer.train()
    assert trainer.seen == [[4, 2, 1, 4], [4, 6, 1, 4]] and trainer.offset == 8
    trainer.setup({"seq_len": 7})
    with pytest.raises(ValueError, match="seq_len must be at most the positions of a sample, 6, not 7"):
        trainer.train()


def test_a_samples_noise_is_its_own_whatever_the_batch_size() -> None:
    small, large = tiny(in_memory=False), tiny(in_memory=False)
    large.setup({"bs": 11})
    for trainer in (small, large):
        trainer.train()
        trainer.train()
    assert small.noise == large.noise
    assert len(set(small.noise.values())) == 46


# Hyper-parameters ----------------------------------------------------------------------------------------------------


def test_a_new_optimizer_has_all_values_and_no_memory() -> None:
    trainer = tiny()
    trainer.setup({"optimizer": "sgd", "weight_decay": 0.01, "momentum": 0.7})
    trainer.train()
    trainer.setup({"optimizer": "adam"})
    group = trainer.optimizer.param_groups[0]
    assert isinstance(trainer.optimizer, Adam) and not trainer.optimizer.state
    assert (group["lr"], group["weight_decay"], group["betas"]) == (0.1, 0.01, (0.7, 0.999))


def test_the_same_optimizer_again_stays() -> None:
    trainer = tiny()
    trainer.setup({"optimizer": "adam"})
    optimizer = trainer.optimizer
    trainer.setup({"optimizer": "adam", "lr": 0.2})
    assert trainer.optimizer is optimizer


@pytest.mark.parametrize("hp", [{"bs": 0}, {"bs": 2.5}, {"batch_size": -1}, {"lrr": 0.1}, {"params": 1}])
def test_invalid_arguments_are_refused(hp: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(hp))):
        tiny().setup(hp)


# Evaluation ----------------------------------------------------------------------------------------------------------


def test_evaluation_does_not_depend_on_batches() -> None:
    trainer = tiny()
    trainer.eval_batch_size = 5
    assert trainer.evaluate()["val_loss"] == pytest.approx(tiny().evaluate()["val_loss"])


def test_evaluation_leaves_no_trace() -> None:
    trainer = tiny()
    trainer.model[1].eval()  # a part that its owner froze
    before, chance = deepcopy(trainer.state_dict()), torch.get_rng_state()
    trainer.evaluate()
    assert [module.training for module in trainer.model] == [True, False, True, True, True]
    assert_equal(trainer.state_dict(), before)
    assert torch.equal(torch.get_rng_state(), chance)
    assert not trainer.seen and all(p.grad is None for p in trainer.model.parameters())


def test_evaluation_that_fails_leaves_no_trace_either() -> None:
    trainer = tiny()
    trainer.measure = lambda batch: 1 / 0  # type: ignore[assignment]
    with pytest.raises(ZeroDivisionError):
        trainer.evaluate()
    assert trainer.model.training and torch.is_grad_enabled()


class Untrained(TorchTrainer):
    def make_optimizer(self, hp: dict[str, Any]) -> Optimizer:
        raise NotImplementedError

    loss = make_optimizer  # type: ignore[assignment]


@pytest.mark.parametrize(
    "argument",
    [
        {"batches_per_step": 0}, {"steps_per_epoch": 1.5}, {"micro_batch_size": "8"}, {"eval_batch_size": 0},
        {"num_workers": -1}, {"prefetch_factor": 0}, {"average_decay": 1.5}, {"clip_grad_norm": 0.0},
        {"precision": "half"}, {"train_data": []}, {"valid_data": []},
    ],
)  # fmt: skip
def test_an_argument_that_makes_no_sense_is_refused_by_its_name(argument: dict[str, Any]) -> None:
    """Some were taken for none at all, others were an error of torch in the first step."""
    given = {"model": nn.Linear(1, 1), "train_data": [0.0], "valid_data": [0.0], **argument}
    with pytest.raises(ValueError, match=f"^{next(iter(argument))} (must be|holds no samples)"):
        Untrained(seed=0, device="cpu", **given)


def make_untrained(loss: Any = None, measured: Any = None) -> Untrained:
    trainer = Untrained(seed=0, device="cpu", model=nn.Linear(1, 1), train_data=[0.0], valid_data=[0.0])
    trainer.loss = lambda batch: loss  # type: ignore[method-assign]
    trainer.measure = lambda batch: measured  # type: ignore[method-assign]
    return trainer


@pytest.mark.parametrize(("loss", "got"), [(0.5, "0.5"), (torch.ones(3), r"one of shape \(3,\)"), (None, "None")])
def test_a_loss_that_is_not_one_number_is_refused(loss: Any, got: str) -> None:
    with pytest.raises(TypeError, match=f"^the loss must be a tensor that holds one number, got {got}$"):
        make_untrained(loss=loss).accumulate([0.0])


def test_metrics_that_are_none_are_refused_and_numbers_may_have_dimensions() -> None:
    with pytest.raises(TypeError, match="measure must return a dict of metrics, got list"):
        make_untrained(measured=[1.0]).evaluate()
    with pytest.raises(TypeError, match=r"^error of measure must be a tensor .* one of shape \(2,\)$"):
        make_untrained(measured={"error": torch.ones(2)}).evaluate()
    assert make_untrained(measured={"error": torch.ones(1, 1), "n": 2}).evaluate() == {"error": 1.0, "n": 2.0}


def test_an_optimizer_that_is_none_is_refused() -> None:
    trainer = make_untrained()
    trainer.make_optimizer = lambda hp: None  # type: ignore[assignment,method-assign,return-value]
    with pytest.raises(ValueError, match="make_optimizer must return an optimizer of torch, got NoneType"):
        trainer.setup({"lr": 0.1})
