"""Trains a small model of letters from one step up to another, as any program could: no line here is of stagetree.

python train.py --from CKPT --to CKPT --start A --stop B --schedule FILE --metrics FILE --evaluate STEPS
"""

import argparse
import json
import signal
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--from", dest="source", default="", help="a checkpoint; empty at step 0")
parser.add_argument("--to", default="checkpoint.pt")
parser.add_argument("--start", type=int, default=0)
parser.add_argument("--stop", type=int, default=100)
parser.add_argument("--schedule", required=True, help="a line of JSON for each step, from --start on")
parser.add_argument("--metrics", default="metrics.jsonl")
parser.add_argument("--evaluate", default="", help="steps, such as 20,40")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--device", default="cpu")
parser.add_argument("--width", type=int, default=32)
args = parser.parse_args()

# ------------------------------------------------------------------------------------------------ data and model

text = Path(__file__).parent.parent.joinpath("charlm", "alice.txt").read_text()
letters = sorted(set(text))
ids = torch.tensor([letters.index(letter) for letter in text])
train_data, val_data = ids[: len(ids) * 9 // 10], ids[len(ids) * 9 // 10 :]
BLOCK, BATCH = 32, 16


class Letters(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embedding = nn.Embedding(len(letters), width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, len(letters))

    def forward(self, x):
        return self.head(self.lstm(self.embedding(x))[0])


def get_batch(data, generator):
    starts = torch.randint(len(data) - BLOCK - 1, (BATCH,), generator=generator).tolist()
    blocks = torch.stack([data[i : i + BLOCK + 1] for i in starts]).to(args.device)
    return blocks[:, :-1], blocks[:, 1:]


def loss_of(x, y):
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


@torch.no_grad()
def validation_loss():
    generator = torch.Generator().manual_seed(1)
    return sum(loss_of(*get_batch(val_data, generator)).item() for _ in range(4)) / 4


def say(step, **more):
    metrics.write(json.dumps({"step": step, **more}) + "\n")
    metrics.flush()


torch.manual_seed(args.seed)
model = Letters(args.width).to(args.device)
optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
batches = torch.Generator().manual_seed(args.seed)
if args.source:
    saved = torch.load(args.source, map_location=args.device, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    batches.set_state(saved["batches"].cpu())

# ------------------------------------------------------------------------------------------------ training

is_wanted = True


def stop(signum, frame):
    global is_wanted
    is_wanted = False


signal.signal(signal.SIGTERM, stop)
metrics = open(args.metrics, "a")  # noqa: SIM115 - until the end
schedule = [json.loads(line) for line in Path(args.schedule).read_text().splitlines()]
evaluate = {int(step) for step in args.evaluate.split(",") if step}
step = args.start
if step in evaluate:
    say(step, metrics={"val_loss": validation_loss()})
while step < args.stop and is_wanted:
    for group in optimizer.param_groups:
        group["lr"] = schedule[step - args.start]["lr"]
    loss = loss_of(*get_batch(train_data, batches))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    say(step, log={"loss": loss.item()})
    if step in evaluate:
        say(step, metrics={"val_loss": validation_loss()})
if step > args.start:
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "batches": batches.get_state()}
    torch.save(saved, args.to)
