"""A loss that is a mean over tokens is the same in parts as whole, trained and measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Optimizer
from torch.utils.data import TensorDataset

from stagetree import TorchTrainer
from stagetree.trainer.tensors import Mean

VOCABULARY, LENGTH = 11, 12


def padded_lines() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCABULARY, (26, LENGTH), generator=generator)
    lengths = torch.randint(1, LENGTH + 1, (26, 1), generator=generator)
    return TensorDataset(tokens, torch.where(torch.arange(LENGTH) < lengths, tokens, -100))


class Language(TorchTrainer):
    """Predicts the next token of padded lines."""

    name = "language"
    as_pair = True

    def __init__(self, *, seed: int, device: str, **how: Any) -> None:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Embedding(VOCABULARY, 8), nn.Tanh(), nn.Linear(8, VOCABULARY)).double()
        super().__init__(
            seed=seed, device=device, model=model, train_data=padded_lines(), valid_data=padded_lines(), **how
        )

    def make_optimizer(self, hp: dict[str, Any]) -> Optimizer:
        return SGD(self.model.parameters(), lr=hp["lr"], momentum=0.9)

    def loss(self, batch: list[Tensor]) -> Mean:
        scores, labels = self.model(batch[0])[:, :-1].flatten(0, 1), batch[1][:, 1:].flatten()
        if not self.as_pair:
            return cross_entropy(scores, labels)
        return cross_entropy(scores, labels, reduction="sum"), (labels != -100).sum()


class Means(Language):
    as_pair = False


def train(kind: type[Language], **how: Any) -> Language:
    trainer = kind(seed=0, device="cpu", **how)
    trainer.setup({"lr": 0.5, "bs": 9})
    for _ in range(5):
        trainer.train()
    return trainer


def distance(one: Language, other: Language) -> float:
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def test_parts_of_a_batch_weigh_by_what_the_whole_batch_counts() -> None:
    whole = train(Language)
    for size in (1, 2, 4):
        assert distance(whole, train(Language, micro_batch_size=size)) < 1e-13
    assert distance(whole, train(Means)) == 0.0
    assert distance(whole, train(Means, micro_batch_size=2)) > 1e-4  # its former value


def test_clipping_sees_the_gradient_of_the_whole_batch() -> None:
    ends = [train(Language, clip_grad_norm=0.05, micro_batch_size=size) for size in (None, 2)]
    assert distance(*ends) < 1e-13


def test_a_metric_over_tokens_does_not_depend_on_how_many_are_measured_at_once() -> None:
    trainer = train(Language)
    whole = trainer.evaluate()["val_loss"]
    logits = trainer.model(padded_lines().tensors[0])
    expected = cross_entropy(logits[:, :-1].flatten(0, 1), padded_lines().tensors[1][:, 1:].flatten())
    assert whole == pytest.approx(expected.item(), rel=1e-12)
    trainer.eval_batch_size = 3
    assert trainer.evaluate()["val_loss"] == pytest.approx(whole, rel=1e-12)


def test_a_batch_that_counts_nothing_changes_nothing() -> None:
    class Nothing(Language):
        def loss(self, batch: list[Tensor]) -> Mean:
            return self.model(batch[0]).sum() * 0, 0

    trainer = Nothing(seed=0, device="cpu", micro_batch_size=4)
    before = [each.detach().clone() for each in trainer.model.parameters()]
    trainer.setup({"lr": 0.5, "bs": 9})
    trainer.train()
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("value", "words"),
    [((torch.ones(()),), "got 1 values"), ((torch.ones(3), 3), "the sum of the loss must be"), (None, "the loss must")],
)
def test_losses_that_are_no_means_are_reported(value: Any, words: str) -> None:
    class Odd(Language):
        def loss(self, batch: list[Tensor]) -> Mean:
            mean: Mean = value
            return mean

    trainer = Odd(seed=0, device="cpu")
    trainer.setup({"lr": 0.5})
    with pytest.raises(TypeError, match=words):
        trainer.train()


def test_parts_whose_shares_do_not_add_up_are_reported() -> None:
    class Half(Language):
        def train_batch(self, batch: Any) -> None:
            self.accumulate(batch, 0.5)
            self.update()

    trainer = Half(seed=0, device="cpu")
    trainer.setup({"lr": 0.5})
    with pytest.raises(ValueError, match=r"add up to 0\.5"):
        trainer.train()


def test_a_metric_must_be_given_alike_in_every_batch() -> None:
    class Mixed(Language):
        def measure(self, batch: list[Tensor]) -> Mapping[str, Mean]:
            return {"even": torch.ones(()) if len(batch[0]) == 20 else (torch.ones(()), 2)}

    trainer = Mixed(seed=0, device="cpu", eval_batch_size=20)
    with pytest.raises(TypeError, match="even of measure must be a mean in every batch"):
        trainer.evaluate()
