"""Prefers right sums to wrong ones: TRL's DPOTrainer with LoRA, on a small model that is made here.

stagetree run examples/trl/dpo.yaml --trainers examples/trl/dpo.py
"""

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer

import stagetree
from stagetree.integrations import loops

run = stagetree.attach("dpo", hp={"lr": 2e-3}, steps=20, eval_every=10, beta=0.1)
words = ["<pad>", "<eos>", "what", "is", "plus", "the", "sum", *map(str, range(40))]
tokens = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<pad>"))
tokens.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="<pad>", eos_token="<eos>")


def pair(number):
    a, b = number % 19, number * 7 % 20
    right, wrong = f"the sum is {a + b}", f"the sum is {(a + b + 1 + number % 5) % 40}"
    return {"prompt": f"what is {a} plus {b} ", "chosen": right, "rejected": wrong}


data = Dataset.from_list([pair(number) for number in range(80)])
torch.manual_seed(run.seed)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
trainer = DPOTrainer(
    model=LlamaForCausalLM(LlamaConfig(vocab_size=len(words), max_position_embeddings=64, **sizes)),
    args=DPOConfig(
        output_dir="out",
        beta=run.args["beta"],
        per_device_train_batch_size=8,
        learning_rate=2e-3,
        max_grad_norm=1.0,
        report_to="none",
        use_cpu=run.device == "cpu",
        disable_tqdm=True,
        seed=run.seed,
    ),
    train_dataset=data.select(range(64)),
    eval_dataset=data.select(range(64, 80)),
    processing_class=tokenizer,
    peft_config=LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
)
loops.transformers(run, trainer)
