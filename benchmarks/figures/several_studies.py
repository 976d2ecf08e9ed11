"""Hippo Figures 13 and 14, TreeML Figures 6.2 and 6.3: one to eight studies at once, with much and with little sharing.

    python -m benchmarks.figures.several_studies [--slots 40] [--seeds 2]

Each study has 144 trials of ResNet20 by SHA over learning rates and batch sizes; two sets of eight spaces, of which the
first shares much within a study and between studies, the second little. The papers do not list their spaces: these are
drawn so that the merge rates of one, two, four and eight of them are near the papers'. On virtual slots, against the
same studies with every trial alone (`merge: false`).
"""

from __future__ import annotations

import argparse
from random import Random
from statistics import fmean

from benchmarks.figures.simulated import Json, cost, keep, merge_rate

PAPER_MERGE_RATES = {"much": {2: 2.26, 4: 2.77, 8: 2.47}, "little": {2: 1.40, 4: 1.19, 8: 1.66}}
PAPER_MOST = {"much": (6.77, 3.53), "little": (2.32, 1.99)}
"""The most that the papers save with several studies: GPU-hours, and time to the end."""


def space(kind: str, number: int) -> Json:
    """A study's space: 12 learning rates times 12 batch sizes, drawn for the set and the study's place in it."""
    draw = Random(f"{kind}/{number}")
    if kind == "much":
        inits = draw.sample([0.02, 0.05, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.4], 3)
        falls, grows = draw.sample(range(50, 100, 5), 4), draw.sample(range(30, 100, 10), 3)
    else:
        inits = draw.sample([hundredths / 100 for hundredths in range(2, 32)], 6)
        falls, grows = draw.sample(range(10, 70, 10), 2), draw.sample(range(10, 70, 15), 3)
    rates = [{"family": "multistep", "init": init, "milestones": [at], "gamma": 0.1} for init in inits for at in falls]
    sizes = [grown for size in (64, 128, 256) for grown in (size, *(_doubled(size, at) for at in grows))]
    return {
        "trainer": "resnet20",
        "metric": "val_accuracy",
        "mode": "max",
        "eval_every": 15,
        "space": {"lr": rates, "bs": sizes},
        "tuner": {"kind": "sha", "num_trials": 144, "reduction_factor": 4, "min_steps": 15, "max_steps": 120},
    }


def _doubled(size: int, at: int) -> Json:
    return {"family": "values", "values": [size, 2 * size], "milestones": [at]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slots", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    print(f"{'sharing':<8} {'studies':>7} {'merge rate':>10} {'(paper)':>8} {'slot time':>10} {'to the end':>11}")
    rows = []
    for kind in PAPER_MERGE_RATES:
        for studies in (1, 2, 4, 8):
            rows.append(row := line(kind, studies, arguments.slots, arguments.seeds))
            paper = row["paper_merge_rate"] or ""
            print(
                f"{kind:<8} {studies:7} {row['merge_rate']:10.2f} {paper:>8} {row['slot_time']:10.2f}"
                f" {row['end_to_end']:11.2f}",
                flush=True,
            )
    keep("several_studies", {"slots": arguments.slots, "seeds": arguments.seeds, "rows": rows, "paper": PAPER_MOST})


def line(kind: str, studies: int, slots: int, seeds: int) -> Json:
    """How many times less these studies cost together, with sharing, than with every trial alone."""
    specs = {f"study-{number}": space(kind, number) for number in range(studies)}
    pairs = [[cost(specs, slots=slots, shares=shares, seed=seed) for shares in (False, True)] for seed in range(seeds)]
    return {
        "sharing": kind,
        "studies": studies,
        "merge_rate": round(merge_rate(*specs.values()), 2),
        "slot_time": round(fmean(alone.slot_hours / shared.slot_hours for alone, shared in pairs), 2),
        "end_to_end": round(fmean(alone.end_hours / shared.end_hours for alone, shared in pairs), 2),
        "paper_merge_rate": PAPER_MERGE_RATES[kind].get(studies),
    }


if __name__ == "__main__":
    main()
