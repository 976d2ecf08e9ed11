"""The cost of one more trial in a preview: the number of Python calls, which is the same on every machine."""

from __future__ import annotations

from cProfile import Profile
from typing import Any

import pytest

from app.simulation.preview import preview
from stagetree.spec import StudySpec

Json = dict[str, Any]
STUDY: Json = {"name": "n", "trainer": "t", "metric": "m", "mode": "max"}


def multistep(init: Any, *milestones: Any) -> Json:
    return {"family": "multistep", "init": init, "milestones": list(milestones), "gamma": 0.1}


def grid(trials: int) -> Json:
    rates = [multistep(0.1 * rate + trials, 20 + first, 60) for rate in range(1, 11) for first in range(10)]
    sizes = [{"family": "values", "values": [64, 128], "milestones": [24 + size]} for size in range(trials // 100)]
    return {"space": {"lr": rates, "bs": sizes}, "tuner": {"kind": "grid", "max_steps": 100}}


def alone(trials: int) -> Json:
    """Trials that share nothing."""
    return random_search(trials, multistep({"uniform": [trials, trials + 1]}, 30, 60))


def decays(trials: int) -> Json:
    """Decays of one trunk."""
    until, decay = {"randint": [100, 1100]}, {"randint": [10, 100]}
    return random_search(trials, {"family": "wsd", "peak": trials, "warmup": 50, "stable_until": until, "decay": decay})


def random_search(trials: int, lr: Json) -> Json:
    return {"space": {"lr": lr}, "tuner": {"kind": "random", "num_trials": trials, "max_steps": 1200}}


def calls(study: Json) -> int:
    spec = StudySpec.from_dict({**STUDY, **study})
    with Profile() as profile:
        preview(spec, slots=2)
    return sum(each.callcount for each in profile.getstats())


@pytest.mark.parametrize(("study", "most"), [(grid, 700), (alone, 750), (decays, 950)])
def test_a_further_trial_costs_few_calls(study: Any, most: int) -> None:
    fewer, more = calls(study(2500)), calls(study(3500))
    assert more - fewer < 1000 * most, f"{(more - fewer) / 1000:.0f} calls a trial"
