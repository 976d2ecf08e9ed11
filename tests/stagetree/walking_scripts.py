"""Scripts that walk by random steps."""

from __future__ import annotations

from built_models import train_to
from stacks import Json

from stagetree.runtime.model import Model

HP = {"lr": {"family": "linear", "init": 0.5, "slope": -0.01}}

LOOP = """
def load(state):
    global where
    where = state["where"]

run.state(save=lambda: {"where": where}, load=load, evaluate=lambda: {"where": where})
for step, hp in run.steps():
"""
"""Its state is how far it has come."""

SCRIPT = f"""
import random
import stagetree

run = stagetree.attach("walk", scale=1.0)
where = 0.0
{LOOP}    where += run.args["scale"] * hp["lr"] * random.random()
"""

TWO = {**HP, "decay": 0.1}

DRAWING = f"""
import numpy
import stagetree
import torch
from torch.utils.data import DataLoader, Dataset

class Drawing(Dataset):
    def __init__(self):
        self.rng = numpy.random.default_rng(0)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return float(self.rng.normal())

run = stagetree.attach("walk")
loader = DataLoader(Drawing(), batch_size=2)
where = 0.0
{LOOP}    for batch in loader:
        where += hp["lr"] * float(batch.sum())
"""


def train_walk(model: Model, until: int, hp: Json = HP) -> Model:
    return train_to(model, until, hp)
