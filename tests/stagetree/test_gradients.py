"""From gradients to parameters: clipped, unscaled, summed, in the hands of a `train_batch` of one's own."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import torch
from resuming import seed_generators
from test_sample_loading import Drawn, Reading, close_trainers  # noqa: F401 - a fixture
from torch import Tensor, nn


def one_step(trainer: Reading, **hp: Any) -> list[Tensor]:
    """The change of each parameter in the first step, without those whose scaled loss has too large values."""
    trainer.setup({"lr": 1.0, "bs": 8, **hp})
    before = [each.detach().clone() for each in trainer.model.parameters()]
    while all(torch.equal(*each) for each in zip(trainer.model.parameters(), before, strict=True)):
        trainer.train()
    return [new.detach() - old for new, old in zip(trainer.model.parameters(), before, strict=True)]


def length(parts: list[Tensor]) -> float:
    return float(torch.cat([part.flatten() for part in parts]).norm())


@pytest.mark.parametrize("how", [{}, {"precision": "bf16"}, {"precision": "fp16"}, {"micro_batch_size": 3}])
def test_a_gradient_is_no_longer_than_it_may_be(how: dict[str, Any]) -> None:
    moved = []
    for clip in (None, 0.001, 1000.0):
        seed_generators(1)
        moved.append(one_step(Reading(batches_per_step=1, clip_grad_norm=clip, **how)))
    assert length(moved[0]) > 0.01
    assert length(moved[1]) == pytest.approx(0.001, rel=0.01)  # by SGD with a rate of 1, so without a loss's scale
    torch.testing.assert_close(moved[2], moved[0])


def test_a_batch_may_be_learned_from_in_ones_own_way() -> None:
    class Twice(Reading):
        def train_batch(self, batch: Tensor) -> None:
            self.optimizer.zero_grad()
            self.accumulate(batch, share=0.5)
            self.accumulate(batch, share=0.5)
            self.update()

    moved = []
    for kind in (Reading, Twice):
        seed_generators(1)
        trainer = kind(batches_per_step=1)
        trainer.model[1].p = 0.0
        moved.append(one_step(trainer))
    torch.testing.assert_close(moved[0], moved[1])


def test_a_last_batch_of_one_sample_can_be_left_out() -> None:
    """Batch normalisation cannot learn from one."""

    class Normalised(Reading):
        def loss(self, batch: Tensor) -> Tensor:
            return self.normal(self.model(batch)).square().mean()

    for drop_last in (False, True):
        trainer = Normalised(data=torch.utils.data.Subset(Drawn(), range(9)), drop_last=drop_last)
        trainer.normal = nn.BatchNorm1d(1)
        trainer.setup({"lr": 0.1, "bs": 4})
        if drop_last:
            trainer.train()
        else:
            with pytest.raises(ValueError) as caught:
                trainer.train()
            assert "drop_last=True leaves it out" in "".join(traceback.format_exception(caught.value))
