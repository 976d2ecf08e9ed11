"""A module is trained as Lightning's own Trainer trains it, hook by hook, or refused."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from resuming import Case, check_resumes
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from stagetree.integrations.lightning import LightningTrainer

HP = {"lr": 0.1, "bs": 5}


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(23, 4, generator=generator, dtype=torch.float64)
    return TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long())


def curriculum() -> Any:
    """Anneals by `global_step`, changes a dropout by `current_epoch`, freezes by epoch, and prints its inputs."""
    from lightning import LightningModule
    from torchmetrics.classification import MulticlassF1Score

    class Curriculum(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
            self.drop = nn.Dropout(0.1)
            self.f1 = MulticlassF1Score(3, average="macro")
            self.weight, self.epochs_done = 1.0, 0
            self.seen: list[Any] = []

        def on_train_epoch_start(self) -> None:
            self.drop.p = 0.1 * (1 + self.current_epoch)
            self.weight *= 0.5
            self.net[0].requires_grad_(self.current_epoch > 0)
            self.seen.append(("start", self.current_epoch, self.global_step))

        def on_train_epoch_end(self) -> None:
            self.epochs_done += 1
            self.seen.append(("end", self.current_epoch, self.global_step))

        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return [batch[0] * 2, batch[1]]

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            self.seen.append((batch_idx, self.global_step, self.drop.p))
            loss = cross_entropy(self.net(batch[0]), batch[1])
            return loss * (self.weight + 0.1 * self.global_step + self.epochs_done)

        def on_validation_epoch_start(self) -> None:
            self.count = 0

        def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
            assert batch_idx == self.count
            self.count += 1
            scores = self.net(batch[0])
            self.f1.update(scores, batch[1])
            self.log("val_f1", self.f1)
            self.log("val_loss", cross_entropy(scores, batch[1]))

        def on_validation_epoch_end(self) -> None:
            self.log("val_batches", float(self.count))
            self.log("val_epoch", float(self.current_epoch))
            self.log("val_step", float(self.global_step))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    torch.manual_seed(0)
    return Curriculum()


class Curricular(LightningTrainer):
    name = "curricular"

    def __init__(self, *, seed: int, device: str, **how: Any) -> None:
        how = {"eval_batch_size": 4, "train_data": data(), "valid_data": data(), **how}
        super().__init__(seed=seed, device=device, module=curriculum(), **how)

    def order(self, generator: torch.Generator) -> Tensor:
        return torch.arange(23)


def test_results_equal_lightnings_own_trainer(tmp_path: Path) -> None:
    from lightning import Callback, Trainer

    class Keep(Callback):
        def on_validation_end(self, trainer: Any, module: Any) -> None:
            passes.append({name: float(value) for name, value in trainer.callback_metrics.items()})

    theirs, ours = curriculum(), Curricular(seed=0, device="cpu")
    passes: list[dict[str, float]] = []
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    loop = Trainer(
        max_epochs=4, num_sanity_val_steps=0, enable_model_summary=False, callbacks=[Keep()],
        default_root_dir=tmp_path, **quiet,
    )  # fmt: skip
    loop.fit(theirs, DataLoader(data(), 5), DataLoader(data(), 4))
    ours.setup(HP)
    measured = []
    for _ in range(4):
        ours.train()
        measured.append(ours.evaluate())
    assert theirs.seen[:-1] == ours.model.seen  # type: ignore[operator,union-attr]
    assert theirs.seen[-1] == ("end", 3, 20)  # with us, where the next epoch begins
    assert theirs.drop.p == ours.model.drop.p == pytest.approx(0.4)  # type: ignore[union-attr]
    for one, other in zip(theirs.net.parameters(), ours.model.net.parameters(), strict=True):  # type: ignore[union-attr]
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
    for one, other in zip(passes, measured, strict=False):
        assert other == pytest.approx(one, rel=1e-6)  # Lightning's means are in single precision
    assert {each["val_epoch"] for each in measured} == {0, 1, 2, 3}


def test_f1_does_not_depend_on_how_many_are_measured_at_once() -> None:
    found = []
    for size in (1, 4, 23):
        trainer = Curricular(seed=0, device="cpu", eval_batch_size=size)
        trainer.setup(HP)
        trainer.train()
        found.append(trainer.evaluate()["val_f1"])
    assert found[0] == found[1] == found[2]


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"steps_per_epoch": 2}, {"batches_per_step": 3, "micro_batch_size": 2}])
def test_hooks_and_their_state_resume_bit_for_bit(tmp_path: Path, how: dict[str, int]) -> None:
    check_resumes(Case(__file__, "Curricular", how, HP, broken=3, steps=7), tmp_path)


def test_changes_of_hooks_are_restored_in_a_used_object() -> None:
    trainer = Curricular(seed=0, device="cpu", batches_per_step=2)
    trainer.setup(HP)
    trainer.train()
    state = deepcopy(trainer.state_dict())
    for _ in range(6):
        trainer.train()
    assert trainer.model.drop.p > 0.1 and trainer.model.epochs_done == 2  # type: ignore[union-attr]
    trainer.load_state_dict(state)
    assert trainer.model.drop.p == 0.1 and trainer.model.epochs_done == 0  # type: ignore[union-attr]
    assert trainer.model.global_step == 2 and not trainer.model.net[0].weight.requires_grad  # type: ignore[index,union-attr]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("on_fit_start", "do it in `__init__`"),
        ("on_train_start", "do it in `__init__`"),
        ("on_train_end", "after the study"),
        ("lr_scheduler_step", "sequence"),
        ("transfer_batch_to_device", "collate_fn"),
        ("on_validation_batch_end", "validation_step"),
        ("on_save_checkpoint", "buffer"),
        ("configure_callbacks", "each callback"),
        ("optimizer_step", "clip_grad_norm"),
    ],
)
def test_a_hook_that_is_not_called_is_refused_by_its_name(name: str, words: str) -> None:
    for as_method in (True, False):
        own = curriculum()
        if as_method:
            own.__class__ = type("Own", (type(own),), {name: lambda self, *_: None})
        else:
            own.__dict__[name] = lambda *_: None
        with pytest.raises(ValueError, match=rf"{name} is not called here: leave it out, and .*{words}"):
            LightningTrainer(seed=0, device="cpu", module=own, train_data=data(), valid_data=data())  # type: ignore[abstract]


def test_every_name_of_lightnings_is_called_harmless_or_refused() -> None:
    """A hook that a coming Lightning adds is refused, since no list has it."""
    from lightning import LightningModule

    class Tomorrow(LightningModule):
        pass

    LightningModule.on_tomorrow = lambda self: None
    try:
        Tomorrow.on_tomorrow = lambda self: None
        with pytest.raises(ValueError, match=r"Tomorrow\.on_tomorrow is not called here"):
            LightningTrainer(seed=0, device="cpu", module=Tomorrow(), train_data=data(), valid_data=data())  # type: ignore[abstract]
    finally:
        del LightningModule.on_tomorrow


def test_unsupported_parts_of_lightnings_trainer_are_named() -> None:
    trainer = Curricular(seed=0, device="cpu")
    with pytest.raises(AttributeError, match="`estimated_stepping_batches`"):
        _ = trainer.model.trainer.estimated_stepping_batches  # type: ignore[union-attr]


def test_steps_that_belong_into_the_module_are_refused_in_the_trainer() -> None:
    class Mixed(Curricular):
        def training_step(self, batch: Any, number: int) -> None: ...

    with pytest.raises(ValueError, match=r"Mixed\.training_step is not called here: it belongs into"):
        Mixed(seed=0, device="cpu")


def test_another_reduction_than_the_mean_is_refused() -> None:
    trainer = Curricular(seed=0, device="cpu")
    trainer.model.validation_step = lambda batch: trainer.model.log("most", batch[0].max(), reduce_fx="max")  # type: ignore[operator,union-attr]
    with pytest.raises(ValueError, match="most is logged with reduce_fx"):
        trainer.evaluate()


def test_shards_are_refused_for_a_lightning_module() -> None:
    with pytest.raises(ValueError, match="train it without shards"):
        LightningTrainer(seed=0, device="cpu", module=curriculum(), train_data=data(), valid_data=data(), shards=2)
