"""Scripts and functions of the bank, as their files: what each adds to one that is right."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import indent

SCRIPT = """
import itertools
import math
import time

import stagetree
{head}
run = stagetree.attach("{name}", hp={{"lr": 0.1, "wd": 0.5}}, steps=20)
weight, count = 0.1, 0
{begin}

def save():
    return {{"weight": weight, "count": count}}

def load(state):
    global weight, count
    weight, count = state["weight"], state["count"]

def evaluate():
    global weight
{evaluate}
    return {{"value": weight}}

run.state(save=save, load=load, evaluate=evaluate)
for {loop}:
    push = 1.0
{step}
    weight, count = math.sin(2.7 * weight + hp["lr"] * push), count + 1
"""

FUNCTIONS = """
import itertools
import math

from stagetree import function_trainer

def build(seed, device):
    return {{"weight": 0.1, "count": 0, {begin}}}

def step(state, hp):
    push = 1.0
{step}
    state["weight"], state["count"] = math.sin(2.7 * state["weight"] + hp["lr"] * push), state["count"] + 1

def measure(state):
    return {{"value": state["weight"]}}

Trainer = function_trainer("{name}", build, step, measure)
"""


@dataclass(frozen=True)
class Script:
    """step, evaluate: extra lines there. begin: lines before the loop. is_right: whether it has no mark."""

    name: str
    is_right: bool = False
    head: str = ""
    begin: str = ""
    step: str = "pass"
    evaluate: str = "pass"
    loop: str = "step, hp in run.steps()"
    shows_in: str = "apart"
    text: str = SCRIPT

    @property
    def source(self) -> str:
        inside = {"step": indent(self.step, "    "), "evaluate": indent(self.evaluate, "    ")}
        return self.text.format(name=self.name, head=self.head, begin=self.begin, loop=self.loop, **inside)


RATES = "itertools.cycle([0.2, 0.9, 1.4])"
OPTIMIZER = "import torch\noptimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)\noptimizer.updates = 0"

SCRIPTS = [
    Script("iterator-of-the-script", begin=f"rates = {RATES}", step="push = next(rates)"),
    Script(
        "window-of-the-script",
        begin="window = []",
        step="window.append(weight)\nif count % 4 == 3: push = sum(window); window.clear()",
    ),
    Script(
        "enumerated", loop="number, (step, hp) in enumerate(run.steps())", step="push = 0.2 if number >= 14 else 1.0"
    ),
    Script(
        "counted-on-an-optimizer",
        begin=OPTIMIZER,
        step="push = 0.2 if optimizer.updates >= 14 else 1.0\noptimizer.updates += 1",
    ),
    Script(
        "skipped-on-a-scaler",
        begin='import torch\nscaler = torch.amp.GradScaler("cpu", enabled=False)\nscaler.skipped = []',
        step="scaler.skipped.append(step)\npush = 0.2 if len(scaler.skipped) > 14 else 1.0",
    ),
    Script("script-rolls-back", evaluate="if count > 10 and abs(weight) > 0.5: weight *= 0.5", shows_in="measured"),
    Script("iterator-of-functions", begin=f'"_rates": {RATES}', step='push = next(state["_rates"])', text=FUNCTIONS),
    Script("plain-script", is_right=True),
    Script("rates-by-step", is_right=True, begin="rates = (0.2, 0.9, 1.4)", step="push = rates[count % 3]"),
    Script(
        "clock-in-the-loop",
        is_right=True,
        begin="begun_at, losses = time.time(), []",
        step="now = time.time(); took, begun_at = now - begun_at, now\nlosses.append(weight)",
    ),
    Script(
        "bar-around-the-loop",
        is_right=True,
        head="from tqdm import tqdm",
        begin="bar = tqdm(run.steps(), total=20)",
        loop="step, hp in bar",
        step="bar.set_postfix(loss=weight)",
    ),
    Script("plain-functions", is_right=True, begin='"other": 1.0', text=FUNCTIONS),
]
