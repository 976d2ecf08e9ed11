"""An average of real trials has the bits of a plain mean after any kill, and is trained on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from stacks import Service, running_service, wait_for
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from stagetree.sinks import follow, open_sink
from stagetree.study import Study

LRS = (0.3, 0.1, 0.03)


def weights(stack: Service, study: str, trial: int, step: int, folder: Path) -> dict[str, torch.Tensor]:
    return load_file(stack.client.checkpoint(study, folder / f"{trial}", trial=trial, step=step))


def plain(states: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {
        name: (sum(state[name].double() for state in states) / len(states)).to(first.dtype)
        for name, first in states[0].items()
    }


@pytest.mark.slow
def test_an_average_whose_process_is_killed(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    trials = [{"hp": {"lr": lr}, "steps": steps} for lr, steps in zip(LRS, (4, 6, 6), strict=True)]
    spec: dict[str, Any] = {"name": "averages", "trainer": "blended", "trainer_args": {"slow_while": str(slow)}}
    spec |= {"metric": "val_loss", "mode": "min", "keep_best": 3, "tuner": {"kind": "trials", "trials": trials}}
    with running_service(tmp_path / "stack") as stack:
        name = stack.run(spec)["study"]
        study = Study.open(name, url=stack.url)
        parts = [weights(stack, name, trial, steps, tmp_path) for trial, steps in enumerate((4, 6, 6))]
        slow.touch()
        made = study.soup([0, 1, 2])
        assert (made.new, made.again, made.trial.trial) == (0, 0, 3)
        pid = int(wait_for("the process that averages", lambda: slow.read_text()))
        slow.unlink()
        os.kill(pid, signal.SIGKILL)
        assert stack.wait(name)["state"] == "completed"
        soup = stack.client.trial(name, 3)
        assert soup.state == "completed" and [each.trial for each in soup.average_of][-1] == 0
        ordered = [parts[each.trial] for each in soup.average_of]
        mean = weights(stack, name, 3, 6, tmp_path)
        assert all(torch.equal(mean[each], expected) for each, expected in plain(ordered).items())
        longer = study.soup(best=2, steps=9)
        assert stack.wait(name)["state"] == "completed" and longer.new == 3
        assert [each["step"] for each in stack.client.trial(name, 4).curve] == [6, 9]
        assert stack.client.replay(name).identical


# Repeats that slots train, as lanes of packs too: all views show the means and deviations of these trainings alone.


WSD = {"family": "wsd", "peak": 0.1, "warmup": 1, "stable_until": 4, "decay": 3, "final": 0.01}
BEGIN, END, SEEDS = 5, 7, 3


def spec(tag: str, trials: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    common = {"name": tag, "trainer": "packable", "metric": "val_loss", "mode": "min", "eval_every": 2, "check": False}
    return common | {"tuner": {"kind": "trials", "trials": trials}} | more


def seed_switch(seed: int) -> Any:
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
    by_hand = [{"hp": {**hp, "data_seed": seed_switch(seed)}, "steps": END} for seed in range(SEEDS)]
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


MERGE = {"merge": 3, "window": 2, "weights": {"decay": "linear"}}


@pytest.mark.parametrize("packing", [0, 2])
def test_values_at_rungs_are_of_the_mean_of_states_that_were_trained(
    stack: Service, tmp_path: Path, packing: int
) -> None:
    """With weights that imitate a decay, the state is the weighted mean, bit for bit."""
    tuner = {"kind": "sha", "sampler": "grid", "num_trials": 3, "min_steps": 4, "max_steps": 12, "reduction_factor": 3}
    study = {"name": f"merges-{packing}", "trainer": "packable", "metric": "val_loss", "mode": "min", "check": False}
    study |= {"space": {"lr": list(LRS), "bs": 7}, "tuner": tuner | {"rung_value": MERGE}, "packing": packing}
    done = stack.run(study | {"keep_every": 1})
    name, trials = done["study"], done["trials"]
    assert (done["state"], done["steps"]["executed"]) == ("completed", 3 * 4 + 8)
    merges = {trial["trial"]: trial["steps"] for trial in trials if trial.merge_of is not None}
    assert sorted(merges.values()) == [4, 4, 4, 12] and merges[done["best"]["trial"]] == 12
    best = stack.client.trial(name, done["best"]["trial"])
    parts = [(each.weight, weights(stack, name, each.trial, each.step, tmp_path)) for each in best.average_of]
    assert [(each.step, each.weight) for each in best.average_of] == [(12, 0.25), (11, 0.5), (10, 0.25)]
    mean = weights(stack, name, best.trial, 12, tmp_path)
    for leaf, found in mean.items():
        total = sum(weight * state[leaf].double() for weight, state in parts)
        assert torch.equal(found, total.to(found.dtype)), leaf  # type: ignore[union-attr]
    assert stack.client.replay(name).identical
