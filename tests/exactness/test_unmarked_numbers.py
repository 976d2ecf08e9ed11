"""Random studies over a trainer that is wrong from a random step on: every number without a mark is right."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from alone import Alone
from bank import compare_study, spec
from cluster import Cluster
from hypothesis import event, example, given, note, settings
from hypothesis import strategies as st
from stacks import Json
from toys import switch

from app.domain.events import ExactnessTested
from app.events.database import Database
from app.registry import TrainerSource

EXAMPLES = 150 if "STAGETREE_TEST_MORE" in os.environ else 10
RATES = st.sampled_from([0.1, 0.2, 0.3])
FILE = str(Path(__file__).parent / "wrong_from.py")


@st.composite
def schedules(draw: st.DrawFn) -> Any:
    """A rate that changes up to twice, at one of few steps: so that many begin alike."""
    milestones = sorted(draw(st.sets(st.sampled_from([3, 5, 8, 11]), max_size=2)))
    values = [draw(RATES) for _ in range(len(milestones) + 1)]
    return {"family": "values", "values": values, "milestones": milestones} if milestones else values[0]


@st.composite
def studies(draw: st.DrawFn, trainer: str, arguments: st.SearchStrategy[Json]) -> Json:
    more = {"seed": draw(st.integers(0, 3)), "eval_every": draw(st.integers(2, 6))}
    more |= {"trainer_args": draw(arguments), "audit": draw(st.sampled_from([0.0, 0.02, 1.0]))}
    if draw(st.booleans()):
        listed = draw(st.lists(st.tuples(schedules(), st.integers(1, 20)), min_size=2, max_size=5))
        trials = [{"hp": {"lr": rate}, "steps": steps} for rate, steps in listed]
        return spec(trainer, tuner={"kind": "trials", "trials": trials}, **more)
    rates = draw(st.lists(schedules(), min_size=2, max_size=5, unique_by=str))
    tuner = {"kind": "asha", "num_trials": len(rates), "min_steps": 3, "max_steps": 18, "reduction_factor": 2}
    return spec(trainer, space={"lr": rates}, tuner=tuner, **more)


@contextmanager
def make_cluster(template: Path, slots: int) -> Iterator[Cluster]:
    """Slots that train in this process, and prove."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(template, f"{folder}/log.db")
        database = Database(f"sqlite:///{folder}/log.db")
        cluster = Cluster(database, Path(folder), slots=slots, proofs=True)
        cluster.sources = {name: TrainerSource(FILE, "1") for name in ("wrong-from", "wrong-epochs")}
        yield cluster
        cluster.close()
        database.dispose()


OTHERS_PROOF = spec(
    "wrong-from",
    space={"lr": [0.2, 0.1, switch(0.2, 0.1, 3), 0.3, 0.4]},
    tuner={"kind": "asha", "num_trials": 5, "min_steps": 3, "max_steps": 18, "reduction_factor": 2},
    seed=1,
    eval_every=2,
    trainer_args={"since": 3},
    audit=0.0,
)
"""A trial that was trained alone proved another one, which had resumed in a used object."""


@example(study=OTHERS_PROOF, slots=2)
@settings(max_examples=EXAMPLES)
@given(study=studies("wrong-from", st.fixed_dictionaries({"since": st.integers(0, 18)})), slots=st.integers(1, 3))
def test_every_unmarked_value_equals_the_trial_alone(
    sqlite_template: Path, alone: Alone, study: Json, slots: int
) -> None:
    check(sqlite_template, alone, study, slots)


AT_AN_EPOCHS_END = (switch(0.1, 0.2, 13), switch(0.1, 0.2, 3), 0.1)
AN_EPOCHS_END_BETWEEN = spec(
    "wrong-epochs",
    tuner={"kind": "trials", "trials": [{"hp": {"lr": rate}, "steps": 14} for rate in AT_AN_EPOCHS_END]},
    eval_every=4,
    trainer_args={"every": 7},
    audit=0.0,
)
"""One trial resumed before an epoch's end at step 7, another after it: a step of the latter proved both, to step 14."""


@pytest.mark.slow
@example(study=AN_EPOCHS_END_BETWEEN, slots=1)
@example(study=AN_EPOCHS_END_BETWEEN, slots=2)
@settings(max_examples=EXAMPLES)
@given(study=studies("wrong-epochs", st.fixed_dictionaries({"every": st.integers(3, 12)})), slots=st.integers(1, 3))
def test_faults_after_an_epochs_end_are_detected_or_marked(
    sqlite_template: Path, alone: Alone, study: Json, slots: int
) -> None:
    check(sqlite_template, alone, study, slots)


def check(sqlite_template: Path, alone: Alone, study: Json, slots: int) -> None:
    with make_cluster(sqlite_template, slots) as cluster:
        done = cluster.run(cluster.submit(study), rounds=200)
        shown = compare_study(cluster.plan, done, alone, FILE)
        note(f"{slots} slots, {study}, {shown}, {cluster.events(ExactnessTested)}")
        event(shown.outcome)
        assert shown.state == "completed" and not shown.errors
        assert not shown.silent_errors
        assert not (shown.isolated and shown.other)
