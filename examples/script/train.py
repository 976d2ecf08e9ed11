"""A training script that owns its loop, in nanoGPT's manner: random blocks of a text, gradient accumulation, AdamW.

    python examples/script/train.py      trains one configuration alone; the next line, six that share two trunks
    stagetree run examples/script/study.yaml --trainers examples/script/train.py

Lines that end in `# stagetree` are all that the study needs.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import stagetree  # stagetree

lr = {"family": "wsd", "peak": 3e-3, "warmup": 10, "stable_until": 60, "decay": 20}
run = stagetree.attach("script", hp={"lr": lr}, steps=80, eval_every=20, width=32, block=32)  # stagetree

# ------------------------------------------------------------------------------------------------ data

text = Path(__file__).with_name("alice.txt").read_text()
letters = sorted(set(text))
ids = np.array([letters.index(letter) for letter in text])
train_data, val_data = ids[: len(ids) * 9 // 10], ids[len(ids) * 9 // 10 :]
block_size, batch_size, accumulation = run.args["block"], 16, 2


def get_batch(data, rng=torch.default_generator):
    ix = torch.randint(len(data) - block_size - 1, (batch_size,), generator=rng).tolist()
    x = torch.stack([torch.from_numpy(data[i : i + block_size]) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size]) for i in ix])
    return x.to(run.device), y.to(run.device)


# ------------------------------------------------------------------------------------------------ model

width = run.args["width"]
model = nn.Sequential(
    nn.Embedding(len(letters), width),
    nn.LSTM(width, width, batch_first=True),
)
head = nn.Linear(width, len(letters))
both = nn.ModuleList([model, head]).to(run.device)
optimizer = torch.optim.AdamW(both.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)


def loss_of(x, y):
    features, _ = model(x)
    return F.cross_entropy(head(features).flatten(0, 1), y.flatten())


@torch.no_grad()
def estimate_loss():
    both.eval()
    rng = torch.Generator().manual_seed(1)
    losses = [loss_of(*get_batch(val_data, rng)).item() for _ in range(4)]
    both.train()
    return {"val_loss": sum(losses) / len(losses)}


def load(state):  # stagetree
    global batch
    both.load_state_dict(state["model"])  # stagetree
    optimizer.load_state_dict(state["optimizer"])  # stagetree
    batch = [each.to(run.device) for each in state["batch"]]  # stagetree


def save():  # stagetree
    return {"model": both.state_dict(), "optimizer": optimizer.state_dict(), "batch": list(batch)}  # stagetree


# ------------------------------------------------------------------------------------------------ training loop

batch = get_batch(train_data)  # the very first batch: each is fetched while the one before is trained
run.state(save=save, load=load, evaluate=estimate_loss)  # stagetree
for _, hp in run.steps():  # stagetree
    for group in optimizer.param_groups:
        group["lr"] = hp["lr"]  # stagetree
    for _ in range(accumulation):
        loss = loss_of(*batch) / accumulation
        batch = get_batch(train_data)
        loss.backward()
    torch.nn.utils.clip_grad_norm_(both.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    run.log("loss", loss.item() * accumulation)  # stagetree
