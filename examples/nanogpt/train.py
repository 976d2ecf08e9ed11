"""Trains a small GPT on a text, as nanoGPT's `train.py` does: with one process or, under torchrun, with several.

python FILE        or        torchrun --nproc-per-node 2 FILE
"""

import os
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from stagetree import attach

# ------------------------------------------------------------------------------------------------ settings

eval_interval, eval_iters, log_interval = 20, 4, 10
gradient_accumulation_steps, batch_size, block_size = 2, 8, 32
n_layer, n_head, n_embd, dropout = 2, 2, 32, 0.1
learning_rate, max_iters, warmup_iters, lr_decay_iters, min_lr = 1e-2, 60, 10, 60, 1e-3
weight_decay, beta1, beta2, grad_clip = 0.1, 0.9, 0.99, 1.0
lr = {"family": "wsd", "peak": learning_rate, "warmup": warmup_iters, "stable_until": 45, "decay": 15, "final": min_lr}
run = attach("nanogpt", launch="torchrun --nproc-per-node 2", hp={"lr": lr}, steps=max_iters, eval_every=eval_interval)
seed, device, dtype = run.seed, run.device, "float32"

ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group("gloo" if device == "cpu" else "nccl")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = device if device == "cpu" else f"cuda:{int(os.environ['LOCAL_RANK'])}"
    gradient_accumulation_steps //= world
else:
    rank, world = 0, 1
master_process = rank == 0
torch.manual_seed(seed + rank)
autocast = nullcontext() if dtype == "float32" else torch.autocast(torch.device(device).type, dtype=torch.bfloat16)

# ------------------------------------------------------------------------------------------------ data

text = Path(__file__).parent.parent.joinpath("charlm", "alice.txt").read_text()
letters = sorted(set(text))
ids = np.array([letters.index(letter) for letter in text])
data = {"train": ids[: len(ids) * 9 // 10], "val": ids[len(ids) * 9 // 10 :]}


def get_batch(split):
    ix = torch.randint(len(data[split]) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[split][i : i + block_size]) for i in ix.tolist()])
    y = torch.stack([torch.from_numpy(data[split][i + 1 : i + 1 + block_size]) for i in ix.tolist()])
    return x.to(device), y.to(device)


# ------------------------------------------------------------------------------------------------ model


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attention, self.projection = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.attention(self.first(x)).view(b, t, 3, n_head, n_embd // n_head).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, n_embd)
        x = x + self.dropout(self.projection(y))
        return x + self.dropout(self.mlp(self.second(x)))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(len(letters), n_embd), nn.Embedding(block_size, n_embd)
        self.blocks = nn.ModuleList(Block() for _ in range(n_layer))
        self.norm, self.head = nn.LayerNorm(n_embd), nn.Linear(n_embd, len(letters), bias=False)

    def forward(self, x, y):
        h = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())


model = GPT().to(device)
matrices = [p for p in model.parameters() if p.dim() >= 2]
others = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(beta1, beta2))
scaler = torch.amp.GradScaler(torch.device(device).type, enabled=dtype == "float16")
raw_model = model
if ddp:
    model = DDP(model)

# ------------------------------------------------------------------------------------------------ training


@torch.no_grad()
def estimate_loss():
    raw_model.eval()
    losses = {split: sum(raw_model(*get_batch(split)).item() for _ in range(eval_iters)) / eval_iters for split in data}
    raw_model.train()
    return losses


parts = {"model": raw_model, "optimizer": optimizer, "scaler": scaler}


def load(state):
    global X, Y
    X, Y = (each.to(device) for each in state["batch"])
    for name, part in parts.items():
        part.load_state_dict(state[name])


def save():
    return {name: part.state_dict() for name, part in parts.items()} | {"batch": [X, Y]}


X, Y = get_batch("train")
run.state(save=save, load=load, evaluate=estimate_loss)
for iter_num, hp in run.steps():
    for group in optimizer.param_groups:
        group["lr"] = hp["lr"]
    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        with autocast:
            loss = model(X, Y) / gradient_accumulation_steps
        X, Y = get_batch("train")
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % log_interval == 0 and master_process:
        print(f"iter {iter_num}: loss {loss.item() * gradient_accumulation_steps:.4f}")

if ddp:
    destroy_process_group()
