"""Trains on digits in the manner of timm: mixup, label smoothing, and a moving average of the weights that warms up.

python FILE
"""

import copy
import math

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stagetree

epochs, batch_size, lr, warmup_epochs, weight_decay = 10, 50, 0.05, 2, 1e-4
then = {"family": "cosine", "init": lr, "min": 0, "period": epochs}
run = stagetree.attach("ema", hp={"lr": {"family": "warmup", "steps": warmup_epochs, "then": then}}, steps=epochs)
mixup_alpha, smoothing, ema_decay, seed, device = 0.2, 0.1, 0.99, run.seed, run.device
torch.manual_seed(seed)
np.random.seed(seed)

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
data = TensorDataset(images, torch.tensor(labels))
train_loader = DataLoader(torch.utils.data.Subset(data, range(600)), batch_size, shuffle=True, drop_last=True)
val_loader = DataLoader(torch.utils.data.Subset(data, range(600, 900)), 300)


def conv(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))


class ModelEma:
    """A copy of the model whose weights follow it, the slower the longer it is trained."""

    def __init__(self, model, decay):
        self.module, self.decay, self.updates = copy.deepcopy(model).eval(), decay, 0

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        decay = self.decay * (1 - math.exp(-self.updates / 50))
        for mine, theirs in zip(self.module.state_dict().values(), model.state_dict().values(), strict=True):
            mine.copy_(decay * mine + (1 - decay) * theirs if mine.is_floating_point() else theirs)


def mixup(x, y):
    lam = np.random.beta(mixup_alpha, mixup_alpha)
    targets = F.one_hot(y, 10) * (1 - smoothing) + smoothing / 10
    return lam * x + (1 - lam) * x.flip(0), lam * targets + (1 - lam) * targets.flip(0)


model = nn.Sequential(conv(1, 8), conv(8, 16), nn.Flatten(), nn.Dropout(0.1), nn.Linear(64, 10)).to(device)
model_ema = ModelEma(model, ema_decay)
optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, nesterov=True, weight_decay=weight_decay)


def train_one_epoch():
    model.train()
    for x, y in train_loader:
        x, y = mixup(x.to(device), y.to(device))
        loss = -(y * F.log_softmax(model(x), 1)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        model_ema.update(model)


@torch.no_grad()
def validate(model):
    scores, targets = zip(*((model(x.to(device)), y.to(device)) for x, y in val_loader), strict=True)
    scores, targets = torch.cat(scores), torch.cat(targets)
    return {
        "loss": F.cross_entropy(scores, targets).item(),
        "top1": (scores.argmax(1) == targets).float().mean().item(),
    }


def save():
    parts = {"model": model, "ema": model_ema.module, "optimizer": optimizer}
    return {"updates": model_ema.updates, **{name: part.state_dict() for name, part in parts.items()}}


def load(state):
    model.load_state_dict(state["model"])
    model_ema.module.load_state_dict(state["ema"])
    optimizer.load_state_dict(state["optimizer"])
    model_ema.updates = state["updates"]


run.state(save=save, load=load, evaluate=lambda: validate(model_ema.module))
for _, hp in run.steps():
    for group in optimizer.param_groups:
        group["lr"] = hp["lr"]
    train_one_epoch()
