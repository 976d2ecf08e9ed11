"""Trains a small model of letters with flags like torchtitan's: FSDP2 over all ranks, and DCP checkpoints.

torchrun --nproc-per-node 2 titan.py --training.steps 20 --checkpoint.folder FOLDER --schedule FILE --metrics FILE
"""

import argparse
import json
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--training.steps", dest="steps", type=int, required=True)
parser.add_argument("--training.seed", dest="seed", type=int, default=0)
parser.add_argument("--model.width", dest="width", type=int, default=32)
parser.add_argument("--checkpoint.initial_load_path", dest="source", default="")
parser.add_argument("--checkpoint.folder", dest="to", required=True)
parser.add_argument("--begin", type=int, default=0, help="the step of the checkpoint that is loaded")
parser.add_argument("--schedule", required=True, help="a line of JSON for each step, from --begin on")
parser.add_argument("--metrics", required=True)
parser.add_argument("--evaluate", default="", help="steps, such as 20,40")
args = parser.parse_args()

# ------------------------------------------------------------------------------------------------ data and model

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
text = Path(__file__).parent.parent.joinpath("charlm", "alice.txt").read_text()
letters = sorted(set(text))
ids = torch.tensor([letters.index(letter) for letter in text])
BLOCK, BATCH = 32, 8


def batch(step, split):
    """Of this rank: a function of the seed, the step and the rank."""
    generator = torch.Generator().manual_seed(hash((args.seed, step, rank)))
    data = ids[: len(ids) * 9 // 10] if split == "train" else ids[len(ids) * 9 // 10 :]
    starts = torch.randint(len(data) - BLOCK - 1, (BATCH,), generator=generator).tolist()
    blocks = torch.stack([data[i : i + BLOCK + 1] for i in starts])
    return blocks[:, :-1], blocks[:, 1:]


torch.manual_seed(args.seed)
width = args.width
layers = [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))]
model = nn.Sequential(nn.Embedding(len(letters), width), *layers, nn.Linear(width, len(letters)))
for layer in (*layers, model):
    fully_shard(layer, mesh=dist.device_mesh.init_device_mesh("cpu", (world,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def loss_of(step, split):
    x, y = batch(step, split)
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


@torch.no_grad()
def measure():
    loss = sum(loss_of(-each, "val") for each in range(1, 5)) / 4
    dist.all_reduce(loss)
    return {"val_loss": loss.item() / world}


def state():
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def say(step, **more):
    if rank == 0:
        with open(args.metrics, "a") as file:
            file.write(json.dumps({"step": step, **more}) + "\n")


# ------------------------------------------------------------------------------------------------ training

if args.source:
    loaded = state()
    dcp.load(loaded, checkpoint_id=args.source)
    set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
is_wanted = torch.ones(1)
signal.signal(signal.SIGTERM, lambda *_: is_wanted.zero_())
schedule = [json.loads(line) for line in Path(args.schedule).read_text().splitlines()]
evaluate = {int(step) for step in args.evaluate.split(",") if step}
step = args.begin
if step in evaluate:
    say(step, metrics=measure())
while step < args.steps:
    agreed = is_wanted.clone()
    dist.all_reduce(agreed, dist.ReduceOp.MIN)
    if not agreed.item():
        break
    for group in optimizer.param_groups:
        group["lr"] = schedule[step - args.begin]["lr"]
    loss = loss_of(step, "train")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    say(step, log={"loss": loss.item()}, **({"metrics": measure()} if step in evaluate else {}))
if step > args.begin:
    dcp.save(state(), checkpoint_id=os.fspath(args.to))
dist.destroy_process_group()
