"""A small copy of the longer study of which-decay.md: its results, and its soup, equal trials trained alone."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from stacks import Service

from stagetree.study import Study

FILE = Path(__file__).parents[2] / "examples" / "charlm" / "trunk.yaml"
SMALL = {"layers": 1, "width": 16, "heads": 2, "context": 16, "dropout": 0.1, "batches_per_step": 1}


def alone(trial: Any, seeds: int) -> list[dict[str, Any]]:
    """The repeats of a trial as trials of their own: each has another order of data from the start of the decay."""
    begin = trial["hp"]["lr"]["stable_until"] + 1
    orders = [0, *({"family": "values", "values": [0, seed], "milestones": [begin]} for seed in range(1, seeds))]
    return [{"hp": {**trial["hp"], "data_seed": order}, "steps": trial["steps"]} for order in orders]


@pytest.mark.night
def test_its_numbers_equal_trials_trained_alone(stack: Service, tmp_path: Path) -> None:
    spec = yaml.safe_load(FILE.read_text())
    spec |= {"trainer_args": SMALL, "eval_every": 4, "keep_best": 4}
    spec["space"]["max_steps"] = [20, 30]
    study = stack.run(spec)
    by_hand = [each for trial in study["trials"] for each in alone(trial, 3)]
    listed = spec | {"name": "alone", "merge": False, "keep_best": len(by_hand)}
    del listed["space"], listed["repeats"]
    single = stack.run(listed | {"tuner": {"kind": "trials", "trials": by_hand}})
    values = [trial["value"] for trial in single["trials"]]
    assert len(study["trials"]) == 4 and len(set(values)) == 12
    for number, trial in enumerate(study["trials"]):
        of_it = values[3 * number : 3 * number + 3]
        assert (trial["value"], trial["last"]["deviation"]) == (fmean(of_it), stdev(of_it))
    best = study["best"]["trial"]
    made = Study.open(study["study"], url=stack.url).soup(best=1)
    assert (made.new, made.again) == (0, 0)
    stack.wait(study["study"])
    soup = load_file(stack.client.checkpoint(study["study"], tmp_path, trial=made.trial.trial))
    numbers = range(3 * best, 3 * best + 3)
    states = [load_file(stack.client.checkpoint(single["study"], tmp_path, trial=number)) for number in numbers]
    for name, mean in soup.items():
        assert torch.equal(mean, (sum(state[name].double() for state in states) / 3).to(mean.dtype))
