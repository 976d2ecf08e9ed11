"""The history of a plan is made while the plan is folded: the log is not read again for it."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain import commands as c
from app.domain.terms import StudyId
from app.events.sql_log import SqlLog
from app.service import chart_data, plan_history, queries
from app.service.plan_history import PlanHistories
from app.service.services import Services
from tests.api.world import Workers


@pytest.fixture
def done(tuned_study: str, workers: Workers) -> str:
    workers.finish(tuned_study, workers.assign(tuned_study, 0), {"accuracy": 0.5})
    return tuned_study


def charts(use: Services, study: str, at: int | None = None) -> list[Any]:
    return [draw(use, use.find(study), at) for draw in (chart_data.history, chart_data.timeline)]


def test_folded_events_are_not_read_again(use: Services, done: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = use.find(done).stream
    position = queries.events(use, use.find(done), 1000)["items"][-1]["position"]
    version = use.plans.get(stream).version
    read, reads = SqlLog.read, list[int]()

    def counting(log: SqlLog, stream: str, *, after: int = 0, limit: int | None = None) -> Any:
        found = read(log, stream, after=after, limit=limit)
        reads.append(len(found))
        return found

    monkeypatch.setattr(SqlLog, "read", counting)
    before = charts(use, done)
    assert set(reads) <= {1}, "the last event, which may be lost"
    with (
        PlanHistories(use.log).holding(stream, version) as alone,
        use.plan_histories.holding(stream, version) as beside,
    ):
        assert (alone.times, alone.spans, alone.marks) == (beside.times, beside.spans, beside.marks)
    assert before == charts(use, done, position)


@pytest.mark.parametrize(("long", "reads"), [(1, 1), (1_000, 0)])
def test_a_long_history_is_read_for_the_first_chart(
    use: Services, done: str, workers: Workers, monkeypatch: pytest.MonkeyPatch, long: int, reads: int
) -> None:
    """Once read, it grows with the plan like a short one."""
    before, stream, read, whole = charts(use, done), use.find(done).stream, SqlLog.read, list[str]()
    use.plan_histories.clear()
    monkeypatch.setattr(plan_history, "LONG", long)
    use.plan_histories.take(stream, use.log.read(stream))  # as while the plan is folded

    def counting(log: SqlLog, stream: str, *, after: int = 0, limit: int | None = None) -> Any:
        whole.extend([stream] * (limit == plan_history.BATCH and after == 0))
        return read(log, stream, after=after, limit=limit)

    monkeypatch.setattr(SqlLog, "read", counting)
    assert charts(use, done) == before
    workers.decide(done, c.PauseStudy(study=StudyId(done)))
    assert charts(use, done)[0]["decisions"]["kind"][-1] == "pause"
    assert len(whole) == reads


def test_a_released_plan_is_read_from_the_log(
    use: Services, done: str, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = charts(use, done)
    monkeypatch.setattr(plan_history, "KEPT", 0)
    with use.plan_histories.holding("another", 0):
        pass
    workers.decide(done, c.CancelStudy(study=StudyId(done), at=1.0))  # folds on; the earlier history is dropped
    monkeypatch.undo()
    after = charts(use, done)
    assert after[0]["decisions"]["kind"] == [*before[0]["decisions"]["kind"], "cancel study"]
    assert after[1] == before[1]
