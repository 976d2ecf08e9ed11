"""Adapters of rank eight on a Llama of 230 million random weights, in bf16 or in four bits: nothing is downloaded.

On a CPU it is a small one, to rehearse.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from stagetree.integrations.huggingface import HFTrainer

LENGTH, SAMPLES = 256, 256
LARGE = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16, "num_attention_heads": 16}
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


@cache
def samples(vocabulary: int) -> list[dict[str, Tensor]]:
    chance = torch.Generator().manual_seed(0)
    pieces = torch.randint(vocabulary, (SAMPLES, LENGTH), generator=chance)
    return [{"input_ids": piece, "labels": piece} for piece in pieces]


class Adapters(HFTrainer):
    """Hyper-parameters: `lr`, `weight_decay`, `bs`."""

    name = "adapters"
    in_four_bits = False

    def __init__(self, *, seed: int, device: str, batches_per_step: int) -> None:
        sizes, vocabulary = (SMALL, 128) if device == "cpu" else (LARGE, 8192)
        with torch.device(device):
            model: Any = LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, **sizes)).to(torch.bfloat16)
        if self.in_four_bits:
            quantise(model)
        adapters = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"])
        data = samples(vocabulary)
        how = {"train_data": data, "valid_data": data[:16], "batches_per_step": batches_per_step}
        adapted = get_peft_model(model.to(device), adapters)
        super().__init__(
            seed=seed, device=device, model=adapted, trainable_only=True, precision="bf16", clip_grad_norm=1.0, **how
        )


class QuantisedAdapters(Adapters):
    """The layers of the base hold numbers of four bits: QLoRA (Dettmers et al. 2023)."""

    name = "quantised-adapters"
    in_four_bits = True


def quantise(model: Any) -> None:
    """Replace the linear layers by bitsandbytes' own, except the last one, as Transformers does."""
    import bitsandbytes as bnb

    for module in list(model.model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                layer = bnb.nn.Linear4bit(
                    child.in_features, child.out_features, bias=False, quant_type="nf4", compute_dtype=torch.bfloat16
                )
                layer.weight = bnb.nn.Params4bit(child.weight.data, requires_grad=False, quant_type="nf4")
                setattr(module, name, layer)
    model.is_loaded_in_4bit = True  # by which peft knows
