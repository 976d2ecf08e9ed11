"""Adapters of low rank on a model of Transformers, whose own weights are random here: nothing is downloaded.

For real work, use `LlamaForCausalLM.from_pretrained(folder)` instead of the configuration. A checkpoint holds only the
adapters.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from stagetree.integrations.huggingface import HFTrainer

TEXT = Path(__file__).parents[1] / "charlm/alice.txt"


class Lora(HFTrainer):
    """Hyper-parameters: `lr`, `weight_decay`, `bs`. A step is ten batches."""

    name = "lora"

    def __init__(self, *, seed: int, device: str, rank: int = 4, precision: str = "bf16") -> None:
        train, valid = lines(TEXT.read_bytes(), 48)
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        llama = LlamaForCausalLM(LlamaConfig(vocab_size=128, num_key_value_heads=2, **sizes))
        adapters = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.1, target_modules=["q_proj", "v_proj"])
        super().__init__(
            seed=seed,
            device=device,
            model=get_peft_model(llama, adapters),
            trainable_only=True,
            train_data=train,
            valid_data=valid,
            batches_per_step=10,
            precision=precision,
            clip_grad_norm=1.0,
        )


def lines(text: bytes, length: int) -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]]]:
    """The text, a token a byte, in pieces as Transformers takes them: nine tenths to train on."""
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    pieces = tokens[: len(tokens) // length * length].view(-1, length)
    samples: list[dict[str, Any]] = [{"input_ids": piece, "labels": piece} for piece in pieces]
    count = len(samples) * 9 // 10
    return samples[:count], samples[count:]
