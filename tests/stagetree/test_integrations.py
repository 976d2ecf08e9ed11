"""Modules of other frameworks resume to the bit, also in a fresh process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from resuming import Case, check_resumes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from stagetree.integrations.huggingface import HFTrainer
from stagetree.integrations.lightning import LightningTrainer
from stagetree.runtime.model import HpTimeline, Model

HP = {
    "lr": {"family": "values", "values": [0.01, 0.003], "milestones": [2]},
    "bs": {"family": "values", "values": [4, 6], "milestones": [1]},
}


def module(width: int) -> Any:
    from lightning import LightningModule

    class Regression(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(1, width), nn.BatchNorm1d(width), nn.Dropout(0.2), nn.Linear(width, 1))

        def training_step(self, batch: Any, number: int) -> Any:
            loss = (self.net(batch[0]) - batch[0]).square().mean()
            self.log("train_loss", loss, prog_bar=True)
            return loss

        def validation_step(self, batch: Any, number: int) -> None:
            self.log_dict({"val_loss": (self.net(batch[0]) - batch[0]).square().mean()})

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1.0)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    return Regression()


class Lit(LightningTrainer):
    name = "lit"

    def __init__(self, *, seed: int, device: str, **how: Any) -> None:
        data = TensorDataset(torch.arange(22.0).view(22, 1) / 22)
        super().__init__(seed=seed, device=device, model=module(4), train_data=data, valid_data=data, **how)


class Tokens:
    """Random token sequences, as dicts."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(50, (8,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids.clone()}


class Lora(HFTrainer):
    name = "lora"

    def __init__(self, *, seed: int, device: str, **how: Any) -> None:
        from peft import LoraConfig, get_peft_model
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(seed)  # frozen parameters are in no checkpoint
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        model = LlamaForCausalLM(LlamaConfig(vocab_size=50, num_key_value_heads=2, **sizes))
        adapted = get_peft_model(model, LoraConfig(r=2, lora_dropout=0.1, target_modules=["q_proj", "v_proj"]))
        super().__init__(seed=seed, device=device, model=adapted, train_data=Tokens(), valid_data=Tokens(), **how)


@pytest.mark.slow
def test_a_collator_makes_the_batches() -> None:
    from torch.nn.utils.rnn import pad_sequence
    from transformers import BatchEncoding

    def pad(samples: list[Any]) -> BatchEncoding:
        shortened = [each["input_ids"][: 4 + number] for number, each in enumerate(samples)]
        ids = pad_sequence(shortened, batch_first=True)
        shapes.append(tuple(ids.shape))
        labels = pad_sequence(shortened, batch_first=True, padding_value=-100)
        return BatchEncoding({"input_ids": ids, "labels": labels, "attention_mask": (labels >= 0).long()})

    shapes: list[tuple[int, ...]] = []
    trainer = Lora(seed=0, device="cpu", collator=pad, batches_per_step=2, eval_batch_size=20)
    trainer.setup({"lr": 0.01, "bs": 3})
    trainer.train()
    assert shapes == [(3, 6), (3, 6)]
    assert trainer.evaluate()["val_loss"] > 0 and shapes[2:] == [(20, 8)]


@pytest.mark.slow
def test_a_lightning_module(tmp_path: Path) -> None:
    check_resumes(Case(__file__, "Lit", {}, HP, broken=2, steps=4), tmp_path)


@pytest.mark.slow
def test_lora_on_a_model_of_transformers(tmp_path: Path) -> None:
    how = {"trainable_only": True, "precision": "bf16", "micro_batch_size": 2, "batches_per_step": 3}
    check_resumes(Case(__file__, "Lora", how, HP, broken=2, steps=4), tmp_path)


def test_models_of_transformers_and_adapters_of_peft_are_exported_as_theirs(tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import LlamaForCausalLM

    class Tokenizer:
        def save_pretrained(self, folder: Path) -> None:
            (folder / "tokenizer.json").touch()

    class Collator:
        tokenizer = Tokenizer()

        def __call__(self, samples: list[Any]) -> Any:
            return torch.utils.data.default_collate(samples)

    trainer = Lora(seed=0, device="cpu", batches_per_step=1, collator=Collator(), average_decay=0.5)
    trainer.setup({"lr": 0.1, "bs": 4})
    trainer.train()
    adapters, whole = tmp_path / "adapters", tmp_path / "whole"
    trainer.export(adapters)
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= {
        path.name for path in adapters.iterdir()
    }
    base = trainer.model.unload()
    base.save_pretrained(whole)
    again = PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(whole), adapters)
    averages = trainer.state_dict()["average"]
    exported = {name: each for name, each in again.state_dict().items() if name in averages}
    assert exported and all(torch.equal(each, averages[name]) for name, each in exported.items())


def loaders(**how: Any) -> Any:
    """A data module whose training loader is made so."""
    from lightning import LightningDataModule

    class Numbers(LightningDataModule):
        def setup(self, stage: str) -> None:
            self.data = TensorDataset(torch.arange(22.0).view(22, 1) / 22)

        def train_dataloader(self) -> Any:
            return how.pop("instead", None) or DataLoader(self.data, **{"batch_size": 5, "shuffle": True, **how})

        def val_dataloader(self) -> Any:
            return DataLoader(self.data, batch_size=8)

    return Numbers()


def test_a_data_module_sets_how_data_is_read() -> None:
    sizes: list[int] = []

    def collate(samples: list[Any]) -> Any:
        sizes.append(len(samples))
        return torch.utils.data.default_collate(samples)

    datamodule = loaders(collate_fn=collate, drop_last=True)
    datamodule.setup("fit")
    datamodule.data = [(x,) for (x,) in datamodule.data]  # not in memory, so that it is collated
    datamodule.setup = lambda stage: None
    trainer = LightningTrainer(seed=0, device="cpu", module=module(4), datamodule=datamodule)  # type: ignore[abstract]
    trainer.setup({"lr": 0.1})
    trainer.train()
    assert sizes == [5] * 4  # of 22 samples, with drop_last
    trainer.evaluate()
    assert sizes[4:] == [8, 8, 6]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"shuffle": False, "sampler": WeightedRandomSampler([1.0] * 22, 22)}, "order of its own, by WeightedRandom"),
        ({"instead": [1, 2]}, "must be one DataLoader, not list"),
    ],
)
def test_an_order_that_cannot_be_kept_is_refused(how: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LightningTrainer(seed=0, device="cpu", module=module(4), datamodule=loaders(**how))  # type: ignore[abstract]


@pytest.mark.parametrize(
    ("has", "words"),
    [
        ({"automatic_optimization": False}, "automatic_optimization = False and trains by itself"),
        ({"on_train_batch_end": lambda self, *_: None}, "on_train_batch_end is not called here: leave it out"),
        ({"configure_gradient_clipping": lambda self, *_: None}, "such as clip_grad_norm"),
    ],
)
def test_a_module_with_a_loop_of_its_own_is_refused(has: dict[str, Any], words: str) -> None:
    own = module(4)
    own.__class__ = type("Own", (type(own),), has)
    with pytest.raises(ValueError, match=words):
        LightningTrainer(seed=0, device="cpu", module=own, datamodule=loaders())  # type: ignore[abstract]


def test_values_logged_by_training_steps_are_kept_between_evaluations() -> None:
    model = Model.build(Lit, {}, 0, "cpu")
    model.advance(HpTimeline(HP))
    logged = model.logged_means()
    assert logged.keys() == {"train_loss"} and logged["train_loss"] is not None
    assert model.evaluate().keys() == {"val_loss"}


def test_several_optimizers_are_refused() -> None:
    trainer = Lit(seed=0, device="cpu")
    one = torch.optim.SGD(trainer.model.parameters(), lr=0.1)
    trainer.model.configure_optimizers = lambda: [one, one]  # type: ignore[assignment]
    with pytest.raises(ValueError, match="one optimizer"):
        trainer.setup({"lr": 0.1})


@pytest.mark.parametrize("name", ["callbacks", "compute_metrics", "args", "label_smoothing_factor", "warmup_steps"])
def test_an_argument_of_transformers_trainer_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"the argument {name} is of Transformers' Trainer and not used here"):
        Lora(seed=0, device="cpu", **{name: []})


@pytest.mark.parametrize("name", ["compute_loss", "training_step", "create_scheduler", "compute_metrics"])
def test_a_method_of_transformers_trainer_is_refused_by_its_name(name: str) -> None:
    kind = type("Own", (Lora,), {name: lambda self: None})
    with pytest.raises(ValueError, match=f"{name} is of Transformers' Trainer"):
        kind(seed=0, device="cpu")


def test_parts_of_padded_lines_weigh_by_their_tokens() -> None:
    def pad(samples: list[Any]) -> dict[str, torch.Tensor]:
        ids = torch.stack([each["input_ids"] for each in samples])
        return {"input_ids": ids, "labels": torch.where(torch.arange(8) < 2 + ids[:, :1] % 6, ids, -100)}

    ends = []
    for size in (None, 2):
        trainer = Lora(seed=0, device="cpu", collator=pad, batches_per_step=1, micro_batch_size=size)
        trainer.model.double()
        trainer.model.eval()  # without its dropout, which is drawn for each part
        trainer.setup({"lr": 1.0, "bs": 6})
        trainer.update = lambda: None  # type: ignore[method-assign]
        trainer.train()
        ends.append([each.grad.clone() for each in trainer.model.parameters() if each.grad is not None])
    for one, other in zip(*ends, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)  # norms count in single precision
