"""Hippo Figure 12 and Table 5, TreeML Figure 6.1: one study, with its shared steps trained once and every trial alone.

    python -m benchmarks.figures.single_study [--slots 40] [--seeds 3]

Four studies on 40 virtual slots: ResNet56 by SHA and by ASHA, MobileNetV2 by a grid, BERT-Base by a grid; BERT-Base on
a quarter of them, since the papers train models that exceed one GPU on several, and their hours say four. Their spaces
come from `examples/cifar10`, and for BERT-Base from the functions of Hippo's Table 4; each has the paper's number of
trials and, to a few hundredths, its merge rate. Results are drawn: learning curves that branch where trials do. The
paper compares with Ray Tune, this with the same scheduler and every trial alone (`merge: false`), which the papers call
Hippo-Trial and found as fast as Tune.
"""

from __future__ import annotations

import argparse
from statistics import fmean

from benchmarks.figures.simulated import ROOT, Json, cost, keep, merge_rate
from stagetree.spec import StudySpec

EXAMPLES = ROOT / "examples" / "cifar10"
RESNET = StudySpec.from_file(EXAMPLES / "resnet56.yaml").to_json()
MOBILENET = StudySpec.from_file(EXAMPLES / "mobilenetv2.yaml").to_json()
DECAY = {"family": "polynomial", "init": 5e-5, "final": 0.0, "steps": 30000, "power": 1.0}
LENGTHENED = [9000, 10500, 12000, 13500, 15000, 16500, 18000, 21000, 22500]
BERT: Json = {
    "trainer": "bert",
    "metric": "val_accuracy",
    "mode": "max",
    "eval_every": 27000,
    "space": {
        "lr": [DECAY, *({"family": "warmup", "steps": steps, "then": DECAY} for steps in (1500, 3000, 4500))],
        "seq_len": [384, *({"family": "values", "values": [384, 512], "milestones": [at]} for at in LENGTHENED)],
    },
    "tuner": {"kind": "grid", "max_steps": 27000},
}
ASHA = RESNET | {"tuner": RESNET["tuner"] | {"kind": "asha", "sampler": "grid"}}

STUDIES: dict[str, tuple[Json, float, int, int]] = {
    "ResNet56, SHA": (RESNET, 60.0, 100, 1),
    "ResNet56, ASHA": (ASHA, 60.0, 100, 1),
    "MobileNetV2, grid": (MOBILENET, 115.0, 100, 1),
    "BERT-Base, grid": (BERT, 0.69, 100, 4),
}
"""The spec; seconds a step, about as in the paper; steps that the winner is trained further; GPUs a trial."""

PAPER = {
    "ResNet56, SHA": (2.45, 4.81, 2.42),
    "ResNet56, ASHA": (2.45, 3.92, 2.38),
    "MobileNetV2, grid": (3.14, 3.15, 2.76),
    "BERT-Base, grid": (2.05, 2.07, 2.11),
}
"""Merge rate; Ray Tune's GPU-hours over Hippo's; its end-to-end time over Hippo's (Hippo, Table 5)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slots", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    header = ("merge rate", "slot time", "(paper)", "to the end", "(paper)", "at most")
    print(f"{'study':<18} " + " ".join(f"{column:>10}" for column in header))
    rows = {}
    for name in STUDIES:
        rows[name] = row = line(name, arguments.slots, arguments.seeds)
        columns = (
            row["merge_rate"],
            row["slot_time"],
            PAPER[name][1],
            row["end_to_end"],
            PAPER[name][2],
            row["at_most"],
        )
        print(f"{name:<18} " + " ".join(f"{column:10.2f}" for column in columns), flush=True)
    keep("single_study", {"slots": arguments.slots, "seeds": arguments.seeds, "rows": rows})


def line(name: str, slots: int, seeds: int) -> Json:
    """How many times less slot time, and time to the end, with sharing; the mean over seeds of the drawn results."""
    spec, seconds, further, gpus = STUDIES[name]
    pairs = [
        [
            cost(
                {"study": spec},
                slots=slots // gpus,
                shares=shares,
                seed=seed,
                step_seconds=seconds,
                winner_steps=further,
            )
            for shares in (False, True)
        ]
        for seed in range(seeds)
    ]
    return {
        "merge_rate": round(merge_rate(spec), 2),
        "slot_time": round(fmean(alone.slot_hours / shared.slot_hours for alone, shared in pairs), 2),
        "end_to_end": round(fmean(alone.end_hours / shared.end_hours for alone, shared in pairs), 2),
        "at_most": round(fmean(alone.end_hours / shared.least_hours for alone, shared in pairs), 2),
        "hours": [round(pairs[0][0].slot_hours, 1), round(pairs[0][1].slot_hours, 1)],
        "paper": list(PAPER[name]),
    }


if __name__ == "__main__":
    main()
