"""Trains a small language model with the `Trainer` of Transformers: a script that a study can search over.

    python examples/hf/train.py      trains one configuration alone; the next line, four that share two trunks
    stagetree run examples/hf/study.yaml --trainers examples/hf/train.py

Lines that end in `# stagetree` are all that the study needs. Model and data are made here, so that nothing is
downloaded: replace them by your `from_pretrained` and `load_dataset`.
"""

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import stagetree  # stagetree
from stagetree.integrations import loops  # stagetree

run = stagetree.attach("hf", hp={"lr": 3e-3}, steps=40, eval_every=20, width=32)  # stagetree

# ------------------------------------------------------------------------------------------------ data

LETTERS = "0123456789+= "


class Sums(Dataset):
    """All sums of two numbers below 30, such as `7+15=22`; every fifth one is kept for validation."""

    def __init__(self, is_valid):
        sums = [f"{a}+{b}={a + b}".ljust(8) for a in range(30) for b in range(30)]
        self.rows = [text for place, text in enumerate(sums) if (place % 5 == 0) == is_valid]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, place):
        ids = torch.tensor([LETTERS.index(letter) for letter in self.rows[place]])
        return {"input_ids": ids, "labels": ids}


# ------------------------------------------------------------------------------------------------ model and trainer

torch.manual_seed(run.seed)  # stagetree: before the model is made
width = run.args["width"]
sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 2, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=len(LETTERS), max_position_embeddings=16, **sizes))
args = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=32,
    per_device_eval_batch_size=64,
    report_to="none",
    use_cpu=run.device == "cpu",  # stagetree
    seed=run.seed,  # stagetree
    disable_tqdm=True,
)
trainer = Trainer(model=model, args=args, train_dataset=Sums(False), eval_dataset=Sums(True))

# The learning rate, its schedule and the number of steps come from the study.
loops.transformers(run, trainer)  # stagetree: instead of trainer.train()
