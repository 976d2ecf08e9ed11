"""Modules of other frameworks go on to the bit, also in a fresh process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from resuming import Case, check_resumes
from torch import nn
from torch.utils.data import TensorDataset

from stagetree.integrations.huggingface import HFTrainer
from stagetree.integrations.lightning import LightningTrainer

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

    def __init__(self, *, seed: int, device: str) -> None:
        data = TensorDataset(torch.arange(22.0).view(22, 1) / 22)
        super().__init__(seed=seed, device=device, model=module(4), train_data=data, valid_data=data)


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

        torch.manual_seed(seed)  # what is frozen is in no checkpoint
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        model = LlamaForCausalLM(LlamaConfig(vocab_size=50, num_key_value_heads=2, **sizes))
        adapted = get_peft_model(model, LoraConfig(r=2, lora_dropout=0.1, target_modules=["q_proj", "v_proj"]))
        super().__init__(seed=seed, device=device, model=adapted, train_data=Tokens(), valid_data=Tokens(), **how)


def test_a_lightning_module(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    check_resumes(Case(__file__, "Lit", {}, HP, broken=2, steps=4), tmp_path)


@pytest.mark.parametrize(
    "how", [{}, {"trainable_only": True, "precision": "bf16", "micro_batch_size": 2, "batches_per_step": 3}]
)
def test_lora_on_a_model_of_transformers(tmp_path: Path, how: dict[str, Any]) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    check_resumes(Case(__file__, "Lora", how, HP, broken=2, steps=4), tmp_path)


def test_several_optimizers_are_refused() -> None:
    pytest.importorskip("lightning")
    trainer = Lit(seed=0, device="cpu")
    one = torch.optim.SGD(trainer.model.parameters(), lr=0.1)
    trainer.model.configure_optimizers = lambda: [one, one]  # type: ignore[assignment]
    with pytest.raises(ValueError, match="one optimizer"):
        trainer.setup({"lr": 0.1})
