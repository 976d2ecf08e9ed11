"""An operator strikes a study whose plan cannot be folded; the other studies on it continue unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from assignments import work

from app.domain import commands as c
from app.domain import events as e
from app.domain.decide import decide
from app.domain.evolve import fold
from app.domain.terms import ChainId, PlanId, StudyId, StudyState, TrialState, Unknown
from app.events.database import Database
from app.events.housekeeping import strike
from app.events.plans import Plans, PlanUnusable
from app.events.records import Write, transact
from app.events.rows import Fenced, LeaseFence
from app.events.sql_log import SqlRecords
from app.events.sql_rows import Rows
from app.search.replay import replay

STREAM = PlanId("plan")
OPENED = e.PlanOpened(trainer="t", trainer_version="1", trainer_args={}, seed=0)
SPEC = {"name": "x", "trainer": "t", "metric": "m", "mode": "max", "tuner": {"kind": "external"}}
GOOD, BAD = StudyId("good"), StudyId("bad")


@pytest.fixture
def records(database: Database) -> SqlRecords:
    return SqlRecords(database)


def give(records: SqlRecords, plans: Plans, command: c.Command) -> None:
    transact(records.log, plans, Write(stream=STREAM, decide=lambda plan: decide(plan, command), at=1.0))


@pytest.fixture
def plans(records: SqlRecords) -> Plans:
    """Two studies that share a prefix; the steps of the bad one are recorded."""
    plans = Plans(records.log)
    for study in (BAD, GOOD):
        give(records, plans, c.SubmitStudy(plan=OPENED, study=study, spec=SPEC, at=1.0))
    give(records, plans, c.AddTrial(study=BAD, hp={"lr": steps(0.1, 0.2)}, steps=20))
    first, second = plans.get(STREAM).studies[BAD].trials[0].path
    stages = ((first, 0, 10), (second, 10, 20))
    run = tuple(e.Stage(node=node, start=start, end=end, study=BAD) for node, start, end in stages)
    facts = [
        e.ChainAssigned(chain=ChainId("c1"), slot="gpu0", stages=run, at=1.0),
        e.Evaluated(node=first, step=10, metrics={"m": 0.5}),
        e.StageCompleted(chain=ChainId("c1"), index=0, seconds=1.0),
        e.CheckpointKept(node=first, step=10, key="k", sha256="", size=1),
        e.CheckpointKept(node=second, step=15, key="l", sha256="", size=1),
        e.ChainEnded(chain=ChainId("c1"), outcome="lost", steps=5, seconds=1.0),
    ]
    records.log.append(STREAM, facts, expected=None, at=1.0)
    give(records, plans, c.AddTrial(study=GOOD, hp={"lr": steps(0.1, 0.3)}, steps=10))
    return plans


def steps(before: float, after: float) -> dict[str, Any]:
    return {"family": "values", "values": [before, after], "milestones": [10]}


def assign(records: SqlRecords, plans: Plans, study: StudyId, chain: str, slot: str) -> None:
    """A live chain for a study, with its row."""
    path = plans.get(STREAM).studies[study].trials[0].path
    stages = (e.Stage(node=path[-1], start=15, end=20, study=study),)
    event = e.ChainAssigned(chain=ChainId(chain), slot=slot, stages=stages, at=1.0)
    assignment = work(*stages)

    def take(rows: Rows) -> None:
        rows.slots.take(slot, "owner", instead_of=None, device="cpu", host="here", pid=1)
        rows.chains.assign(chain, STREAM, slot, assignment, 60.0)
        rows.chains.claim(chain, "owner", 60.0)

    records.log.append(STREAM, [event], expected=None, at=1.0, alongside=take)


def append_bad_event(records: SqlRecords) -> None:
    """Append an event of an unknown trial, with which the plan cannot be folded."""
    extended = e.TrialExtended(study=BAD, trial=99, steps=10, path={})
    records.log.append(STREAM, [extended], expected=None, at=1.0)


def test_the_plan_is_folded_without_a_struck_study(records: SqlRecords, plans: Plans) -> None:
    append_bad_event(records)
    with pytest.raises(PlanUnusable):
        Plans(records.log).get(STREAM)
    assert strike(records, BAD, "it never ends", 9.0)
    plan = Plans(records.log).get(STREAM)  # like a starting process
    bad, good = plan.studies[BAD], plan.studies[GOOD]
    assert (bad.state, bad.error, bad.trials) == (StudyState.FAILED, "struck by an operator: it never ends", [])
    assert [trial.state for trial in good.trials] == [TrialState.COMPLETED]
    assert not strike(records, BAD, "again", 9.0)
    with records.read() as rows:
        assert (rows.studies.find(BAD).state, rows.studies.find(GOOD).state) == ("failed", "running")


def test_steps_of_a_struck_study_serve_other_studies(records: SqlRecords, plans: Plans) -> None:
    """Its own part of the tree too, as soon as another study passes there."""
    before = plans.get(STREAM).studies[BAD].trials[0].path
    strike(records, BAD, "", 9.0)
    plan = plans.get(STREAM)
    assert set(plan.nodes) == {before[0]} and 10 in plan.nodes[before[0]].checkpoints
    give(records, plans, c.AddTrial(study=GOOD, hp={"lr": steps(0.1, 0.2)}, steps=20))
    assert plan.studies[GOOD].trials[1].path == before
    assert 15 in plan.nodes[before[1]].checkpoints and plan.nodes[before[1]].steps_run == 5


def test_a_plan_in_memory_equals_the_plan_read_anew(records: SqlRecords, plans: Plans) -> None:
    plans.get(STREAM)
    strike(records, BAD, "", 9.0)
    read = fold(each.event for each in records.log.read(STREAM))
    assert plans.get(STREAM) == Plans(records.log).get(STREAM)
    assert plans.get(STREAM).studies == read.studies and plans.get(STREAM).nodes == read.nodes


def test_only_chains_of_the_struck_study_end(records: SqlRecords, plans: Plans) -> None:
    assign(records, plans, BAD, "b", "gpu0")
    assign(records, plans, GOOD, "g", "gpu1")
    strike(records, BAD, "", 9.0)
    assert set(plans.get(STREAM).chains) == {"g"}
    with records.read() as rows:
        assert [row.chain for row in rows.chains.live()] == ["g"]
    with pytest.raises(Fenced), records.write() as rows:
        rows.chains.heartbeat("b", LeaseFence(1, "owner"), 60.0, 16)


def test_a_struck_study_refuses_commands(records: SqlRecords, plans: Plans) -> None:
    strike(records, BAD, "", 9.0)
    with pytest.raises(Exception, match="is failed and cannot be changed any more"):
        give(records, plans, c.AddTrial(study=BAD, hp={"lr": 1}, steps=1))
    with pytest.raises(Unknown, match="there is no study other"):
        strike(records, "other", "", 9.0)


def test_a_log_with_a_strike_can_be_replayed(records: SqlRecords, plans: Plans) -> None:
    strike(records, BAD, "", 9.0)
    log = [(each.position, each.event) for each in records.log.read(STREAM)]
    assert replay(log, GOOD).to_json()["identical"]
    assert replay(log, BAD).to_json()["identical"]


@pytest.mark.slow
def test_the_command_needs_no_server(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    database = Database(f"sqlite:///{folder / 'stagetree.db'}")
    database.create()
    records = SqlRecords(database)
    give(records, Plans(records.log), c.SubmitStudy(plan=OPENED, study=BAD, spec=SPEC, at=1.0))
    append_bad_event(records)
    database.dispose()
    command = [sys.executable, "-m", "stagetree", "strike", "bad", "--dir", str(folder), "--reason", "no end"]
    root = str(Path(__file__).parents[2])
    done = subprocess.run(command, cwd=root, env=os.environ.copy(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "bad is struck" in done.stdout
    assert Plans(records.log).get(STREAM).studies[BAD].error == "struck by an operator: no end"
    database.dispose()
