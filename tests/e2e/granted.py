"""A script in a process of its own, which takes many steps at once: it walks, and writes down each step it begins."""

import os
import time

import torch

import stagetree

run = stagetree.attach("granted", launch="python -u", journal="", seconds=0.0, hp={"lr": 0.1}, steps=4)
where = torch.zeros(3)
run.state(
    save=lambda: {"where": where},
    load=lambda state: where.copy_(state["where"]),
    evaluate=lambda: {"score": where.sum()},
)

with open(run.args["journal"] or os.devnull, "a") as journal:
    for step, hp in run.steps():
        print(os.getpid(), step, file=journal, flush=True)
        time.sleep(run.args["seconds"])
        where.mul_(0.99).add_(hp["lr"] * torch.rand(3))
        run.log("moved", where.sum())
