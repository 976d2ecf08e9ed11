"""Repeats that slots train, as lanes of packs too: means and deviations of these trainings alone, wherever shown."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from stacks import Service
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from stagetree.sinks import follow, open_sink

WSD = {"family": "wsd", "peak": 0.1, "warmup": 1, "stable_until": 4, "decay": 3, "final": 0.01}
BEGIN, END, SEEDS = 5, 7, 3


def spec(tag: str, trials: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    common = {"name": tag, "trainer": "packable", "metric": "val_loss", "mode": "min", "eval_every": 2, "check": False}
    return common | {"tuner": {"kind": "trials", "trials": trials}} | more


def seeded(seed: int) -> Any:
    return {"family": "values", "values": [0, seed], "milestones": [BEGIN]} if seed else 0


def scalars(folder: Path, tag: str) -> dict[int, float]:
    read = EventAccumulator(str(folder))
    read.Reload()
    return {each.step: float(each.tensor_proto.float_val[0]) for each in read.Tensors(tag)}


@pytest.mark.parametrize("packing", [0, 3])
def test_repeats_are_what_trials_by_hand_are(stack: Service, tmp_path: Path, packing: int) -> None:
    hp = {"lr": WSD, "bs": 5}
    repeats = {"seeds": SEEDS, "from": "branch"}
    study = stack.run(spec("repeats", [{"hp": hp, "steps": END}], repeats=repeats, packing=packing))
    by_hand = [{"hp": {**hp, "data_seed": seeded(seed)}, "steps": END} for seed in range(SEEDS)]
    alone = stack.run(spec("by-hand", by_hand, merge=False, packing=packing))
    values, last = [each["value"] for each in alone["trials"]], study["trials"][0]["last"]
    assert len(set(values)) == SEEDS
    assert (last["value"], last["deviation"], last["repeats"]) == (fmean(values), stdev(values), SEEDS)
    assert study["steps"] == {"requested": 21, "unique": 11, "executed": 11}
    curve = {each.step: each.metrics["val_loss"] for each in stack.client.trial(study["study"], 0).curve}
    follow(stack.client, study["study"], [open_sink(f"tensorboard:{tmp_path}")])
    run = tmp_path / study["study"] / "trial-0"
    assert scalars(run, "val_loss") == pytest.approx(curve) and list(curve) == [2, 4, 6, 7]
    assert scalars(run, "val_loss/std") == pytest.approx({6: scalars(run, "val_loss/std")[6], 7: stdev(values)})
