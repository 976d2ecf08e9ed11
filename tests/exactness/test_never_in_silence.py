"""Random studies over a trainer that is wrong from a random step on: every number without a mark is right."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from alone import Alone
from bank import hold, spec
from cluster import Cluster
from hypothesis import event, given, note, settings
from hypothesis import strategies as st

from app.domain.events import ExactnessTested
from app.events.database import Database
from app.registry import TrainerSource

EXAMPLES = 150 if "STAGETREE_TEST_MORE" in os.environ else 10
RATES = st.sampled_from([0.1, 0.2, 0.3])
Json = dict[str, Any]


@st.composite
def schedules(draw: st.DrawFn) -> Any:
    """A rate that changes up to twice, at one of few steps: so that many begin alike."""
    milestones = sorted(draw(st.sets(st.sampled_from([3, 5, 8, 11]), max_size=2)))
    values = [draw(RATES) for _ in range(len(milestones) + 1)]
    return {"family": "values", "values": values, "milestones": milestones} if milestones else values[0]


@st.composite
def studies(draw: st.DrawFn) -> Json:
    more = {"seed": draw(st.integers(0, 3)), "eval_every": draw(st.integers(2, 6))}
    more |= {"trainer_args": {"since": draw(st.integers(0, 18))}, "audit": draw(st.sampled_from([0.0, 0.02, 1.0]))}
    if draw(st.booleans()):
        listed = draw(st.lists(st.tuples(schedules(), st.integers(1, 20)), min_size=2, max_size=5))
        trials = [{"hp": {"lr": rate}, "steps": steps} for rate, steps in listed]
        return spec("wrong-from", tuner={"kind": "trials", "trials": trials}, **more)
    rates = draw(st.lists(schedules(), min_size=2, max_size=5, unique_by=str))
    tuner = {"kind": "asha", "num_trials": len(rates), "min_steps": 3, "max_steps": 18, "reduction_factor": 2}
    return spec("wrong-from", space={"lr": rates}, tuner=tuner, **more)


@settings(max_examples=EXAMPLES)
@given(study=studies(), slots=st.integers(1, 3))
def test_every_value_without_a_mark_is_that_of_the_trial_alone(
    sqlite_template: Path, alone: Alone, study: Json, slots: int
) -> None:
    folder = Path(tempfile.mkdtemp())
    shutil.copy(sqlite_template, folder / "log.db")
    database = Database(f"sqlite:///{folder / 'log.db'}")
    cluster = Cluster(database, folder, slots=slots, proofs=True)
    cluster.sources = {"wrong-from": TrainerSource(str(Path(__file__).parent / "wrong_from.py"), "1")}
    try:
        done = cluster.run(cluster.submit(study), rounds=200)
        shown = hold(cluster.plan, done, alone, cluster.sources["wrong-from"].path)
        note(f"{slots} slots, {study}, {shown}, {cluster.events(ExactnessTested)}")
        event(f"{shown.outcome}, {len(shown.other)} other")
        assert shown.state == "completed" and not shown.errors
        assert not shown.in_silence
        assert not (shown.isolated and shown.other)
    finally:
        cluster.close()
        database.dispose()
        shutil.rmtree(folder)
