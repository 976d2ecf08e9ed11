"""TreeML Figure 6.4: makespan of the critical path against breadth first and most children first, one stage at a time.

    python -m benchmarks.figures.scheduling [--slots 8 20 40] [--seeds 3]

As in the paper, no policy batches stages, so that each loads its checkpoint: the critical path gives out the first
stage of the most urgent path and not the rest of it. `batched` is what the product does: a slot keeps the model in
memory along a whole path. Beside them stands a bound that no order of the work can beat, its steps counted alone. A
space of learning rates and batch sizes with the paper's merge rate of 3.55, by grid and by ASHA.
"""

from __future__ import annotations

import argparse
from statistics import fmean

from app.scheduling.fair_share import NO_CONTENTION, NOTHING, POLICIES, Choice, FairShare, PassedOver, Policy
from app.scheduling.frontier import Frontier
from benchmarks.figures.simulated import Json, cost, keep, merge_rate
from benchmarks.policies import COMPARED

PAPER = {"grid": {"breadth_first": None, "most_children_first": 1.0}, "ASHA": {"most_children_first": 1.27}}
"""Makespan over that of the critical path, where the paper says it in words."""

RATES = [{"family": "multistep", "init": 0.1, "milestones": [at], "gamma": 0.1} for at in range(54, 114, 5)]
SIZES = [128, *({"family": "values", "values": [128, 256], "milestones": [at]} for at in range(39, 119, 8))]
SPACE: Json = {
    "trainer": "resnet20",
    "metric": "val_accuracy",
    "mode": "max",
    "eval_every": 15,
    "space": {"lr": RATES, "bs": SIZES},
}
TUNERS: dict[str, Json] = {
    "grid": {"kind": "grid", "max_steps": 120},
    "ASHA": {"kind": "asha", "min_steps": 15, "max_steps": 120, "reduction_factor": 4, "sampler": "grid"},
}


def one_stage(
    frontiers: list[Frontier], passed_over: PassedOver = NOTHING, balance: FairShare = NO_CONTENTION
) -> Choice | None:
    """The first stage of the critical path, alone."""
    choice = POLICIES["critical_path"](frontiers, passed_over, balance)
    return choice and (choice[0], choice[1][:1])


ORDERS: dict[str, Policy] = {
    "critical": one_stage,
    "breadth_first": COMPARED["breadth_first"],
    "most_children_first": COMPARED["most_children_first"],
    "batched": POLICIES["critical_path"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slots", type=int, nargs="+", default=[8, 20, 40])
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    print("hours to the end; in brackets, times the critical path's")
    print(f"{'tuner':<6} {'slots':>5} {'bound':>6} " + " ".join(f"{name:>20}" for name in ORDERS))
    rows = []
    for tuner in TUNERS:
        for slots in arguments.slots:
            rows.append(row := line(tuner, slots, arguments.seeds))
            cells = [f"{hours:.2f} ({hours / row['hours']['critical']:.2f})" for hours in row["hours"].values()]
            print(f"{tuner:<6} {slots:5} {row['bound']:6.2f} " + " ".join(f"{cell:>20}" for cell in cells), flush=True)
    keep("scheduling", {"seeds": arguments.seeds, "merge_rate": rows[0]["merge_rate"], "rows": rows})


def line(tuner: str, slots: int, seeds: int) -> Json:
    """Mean hours to the end over seeds, by policy."""
    trials = len(RATES) * len(SIZES)
    fields = TUNERS[tuner] | ({} if tuner == "grid" else {"num_trials": trials})
    spec = SPACE | {"tuner": fields}
    hours, bounds = dict[str, float](), list[float]()
    for name, policy in ORDERS.items():
        costs = [cost({"study": spec}, slots=slots, shares=True, seed=seed, policy=policy) for seed in range(seeds)]
        hours[name] = round(fmean(each.end_hours for each in costs), 3)
        bounds.append(fmean(each.least_hours for each in costs))
    return {
        "tuner": tuner,
        "slots": slots,
        "bound": round(min(bounds), 3),
        "hours": hours,
        "merge_rate": round(merge_rate(spec), 2),
    }


if __name__ == "__main__":
    main()
