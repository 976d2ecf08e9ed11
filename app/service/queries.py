"""Queries as plain functions, for the API's routes and for the command line on a store without a server.

Each takes the services and, if it is about one study, the study's row. Positions of events count from the study's
submission.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain, islice
from typing import Any

from app.domain.accounting import Forecast
from app.domain.search_plan import get_trial
from app.domain.terms import ANONYMOUS_ADMIN, ChainId, Principal, StudyId, Unknown
from app.events import ChainRecord, RowsPort, StudyRecord
from app.service import waiting_reasons
from app.service.health import demand_of_kind
from app.service.services import ID, HttpProblem, InvalidField, Services, WrongCursor
from app.service.slot_use import estimate_errors, gain_fields, slot_view
from app.service.views import documents, plans, trial_order
from stagetree.models.pages import (
    Columns,
    Demand,
    Environment,
    Environments,
    EventPage,
    SlotPage,
    StudyPage,
    TrainerPage,
    TrialPage,
)
from stagetree.models.service import Event, Token, TokenPage, TrainerListed
from stagetree.models.studies import Share, StudyAnswer
from stagetree.models.trials import Plan, StageTree, TrialDetail
from stagetree.sequences import did_you_mean

POSITIONS = 2**63 - 1
"""All of them."""
MOST_READ = 10_000
"""Events that are read at once in search of those of one study."""

Json = dict[str, Any]
ROWS = 500
PLACE = re.compile("[0-9]{1,18}at[1-9][0-9]{0,17}")
"""A cursor into trials in an order that may change: the number of trials before it, and the event."""


def studies(
    use: Services,
    limit: int,
    cursor: str | None = None,
    states: Collection[str] = (),
    name: str | None = None,
    sees: Callable[[str], bool] = lambda project: True,
) -> StudyPage:
    """A page of the list, newest first. Raises `InvalidField`.

    Filtered by state, name, and the projects that the caller `sees`.
    """
    with use.records.read() as rows:
        if cursor is not None and not (ID.fullmatch(cursor) and rows.studies.find(cursor)):
            raise WrongCursor(cursor)
        matching = list(islice(_matching(rows, cursor, states, name, sees), limit + 1))
        live = rows.chains.live()
    more = matching[limit - 1].id if len(matching) > limit else None
    return StudyPage(items=[documents.list_entry(row, live) for row in matching[:limit]], next_cursor=more)


def _matching(
    rows: RowsPort,
    after: str | None,
    states: Collection[str],
    name: str | None,
    sees: Callable[[str], bool],
) -> Iterator[StudyRecord]:
    while page := rows.studies.page(after=after, limit=ROWS):
        after = page[-1].id
        for row in page:
            if (not states or row.state in states) and name in (None, row.name) and sees(row.project):
                yield row


def study(use: Services, row: StudyRecord, *, with_trials: bool, at: int | None = None) -> tuple[StudyAnswer, int]:
    """The study, and the version of its plan."""
    with showing_study(use, row, with_trials=with_trials, at=at) as (shown, version):
        return (shown.with_fields(trials=list(shown.trials)) if with_trials else shown), version


@contextmanager
def showing_study(
    use: Services, row: StudyRecord, *, with_trials: bool, at: int | None = None
) -> Iterator[tuple[StudyAnswer, int]]:
    """As `study`, but each trial is made when it is read, which may be done once, and within the block."""
    expected = _forecast_end(use, row, at)
    if at is not None:
        with _showing_past_study(use, row, at, expected, with_trials=with_trials) as past:
            yield past
        return
    live = use.live(row.stream)
    reached = {ChainId(chain.chain): chain.step for chain in live}
    with use.open_study(row) as (plan, folded):
        now, moment = use.clock(), (plan.version, *sorted(reached.items()))

        def make() -> StudyAnswer:
            return documents.study(
                plan, folded.id, now=now, reached=reached, expected=expected, with_trials=with_trials, gather=iter
            )

        shown = make() if with_trials else use.overviews.get(row.id, moment, make)
        passing: Json = {"wall_seconds": round(folded.wall_seconds(now), 3), "slots": documents.share(row, live)}
        if with_trials:
            passing |= gain_fields(use, row, plan, is_packed=shown.packing is not None)
        if waits := waiting_reasons.study_reasons(use, row.stream, plan, folded, live):
            passing["waits_for"] = waits
        yield shown.with_fields(**passing), plan.version


def _forecast_end(use: Services, row: StudyRecord, at: int | None) -> Forecast | None:
    """The expected trials and steps; None for a study that is over. The plan stays unlocked during the simulation."""
    with use.plans.holding(row.stream, fresh=False) as plan:
        study = plan.studies.get(StudyId(row.id))
    if study is None or (study.is_final and at is None):
        return None
    from app.simulation.forecast import forecast

    return forecast(study.spec.json)


@contextmanager
def _showing_past_study(
    use: Services, row: StudyRecord, at: int, expected: Forecast | None, *, with_trials: bool
) -> Iterator[tuple[StudyAnswer, int]]:
    """The study after an event. The log has the running stages of that time, but not the steps within them."""
    with use.open_study(row, at) as (plan, study):
        with use.plan_histories.holding(row.stream, plan.version) as plan_history:
            now = plan_history.times[plan.version - 1]
        shown = documents.study(plan, study.id, now=now, expected=expected, with_trials=with_trials, gather=iter)
        yield shown.with_fields(slots=Share(used=len(shown.progress.running), due=None)), plan.version


def trials(
    use: Services,
    row: StudyRecord,
    limit: int,
    cursor: str | None = None,
    states: Collection[str] = (),
    sort: str = "trial",
    at: int | None = None,
) -> TrialPage:
    """A page of the study's trials in these states, sorted as by `sort_trials`. Raises `InvalidField`."""
    notes = waiting_reasons.notes_by_node(use, row, at)
    if not states and sort == "trial":
        after = parse_cursor(cursor)
        with use.open_study(row, at) as (plan, study):
            shown, total = documents.trials(plan, study, after, limit), len(study.trials)
            items = [waiting_reasons.with_waiting_reason(each, plan, study.trials[each.trial], notes) for each in shown]
        return TrialPage(items=items, next_cursor=str(after + limit) if after + limit < total else None)
    after, at = _parse_place(cursor, at)
    with use.open_study(row, at) as (plan, study):
        every = documents.trials(plan, study)
        if (name := sort.removeprefix("-")) not in trial_order.KEYS:
            fields = trial_order.fields_of(every, study.spec.space or ())
            if name not in fields:
                expected = f"must be one of {', '.join(fields)}, or -FIELD for the other way round"
                raise InvalidField("sort", f"{expected}, got {sort!r}{did_you_mean(name, fields)}")
        chosen = [trial for trial in every if not states or trial.state in states]
        page = trial_order.sort_trials(chosen, sort, study.spec.mode)[after : after + limit]
        items = [waiting_reasons.with_waiting_reason(each, plan, study.trials[each.trial], notes) for each in page]
        moment = plan.version - study.submitted_version + 1
    more = f"{after + limit}at{moment}" if after + limit < len(chosen) else None
    return TrialPage(items=items, next_cursor=more)


def _parse_place(cursor: str | None, at: int | None) -> tuple[int, int | None]:
    """The number of trials on earlier pages, and the moment of the first page. Raises `InvalidField`."""
    if cursor is None:
        return 0, at
    after, _, moment = cursor.partition("at")
    if not (PLACE.fullmatch(cursor) and at in (None, int(moment))):
        raise WrongCursor(cursor)
    return int(after), int(moment)


def columns(use: Services, row: StudyRecord, at: int | None = None, digits: int | None = None) -> Columns:
    """All trials of the study by column: nested fields under dotted names, null if a trial has no such field."""
    with use.open_study(row, at) as (plan, study):
        return trial_order.columns(documents.trials(plan, study), digits)


def trial(use: Services, row: StudyRecord, number: int, at: int | None = None) -> TrialDetail:
    """One trial with its curve. Raises `Unknown`."""
    notes = waiting_reasons.notes_by_node(use, row, at)
    with use.open_study(row, at) as (plan, study):
        its = get_trial(study, number)
        return waiting_reasons.with_waiting_reason(documents.trial(plan, its), plan, its, notes)


def events(
    use: Services,
    row: StudyRecord,
    limit: int,
    after: int = 0,
    cursor: str | None = None,
    at: int | None = None,
    before: int | None = None,
) -> EventPage:
    """A page of the study's events after position `after` and up to `at`; with `before`, the last ones before that
    position. Raises `InvalidField`.
    """
    if at is not None:
        use.version(row, at)
    until = POSITIONS if at is None else at
    if before is None:
        return _events_after(use, row, limit, parse_cursor(cursor) or after, until)
    if after or cursor is not None:
        raise InvalidField("before", "cannot be given together with after or cursor")
    return EventPage(items=_events_before(use, row, limit, min(before - 1, until)), next_cursor=None)


def _events_after(use: Services, row: StudyRecord, limit: int, after: int, until: int) -> EventPage:
    """Events of other studies on the plan are skipped, so that only the last page has fewer than `limit`."""
    feed, batch, is_last = use.feed(row, after), limit, False
    found: list[Event] = []
    while len(found) < limit and not is_last:
        version = feed.version
        found += [plans.event(recorded, feed.before) for recorded in feed.read(batch)]
        is_last = feed.version - version < batch or feed.version - feed.before >= until
        batch = min(2 * batch, MOST_READ)
    page = [event for event in found[:limit] if event.position <= until]
    if len(found) <= limit or (is_last and len(page) < limit):
        return EventPage(items=page, next_cursor=None if is_last else str(feed.version - feed.before))
    return EventPage(items=page, next_cursor=str(found[limit - 1].position))


def _events_before(use: Services, row: StudyRecord, limit: int, last: int) -> list[Event]:
    """The study's last `limit` events up to a position."""
    found: list[Event] = []
    feed = use.feed(row, 0)
    end, batch = min(last, feed.head - feed.before), limit
    while len(found) < limit and end > 0:
        feed = use.feed(row, max(0, end - batch))
        found = [*(plans.event(recorded, feed.before) for recorded in feed.read(min(batch, end))), *found]
        end, batch = end - batch, min(2 * batch, MOST_READ)
    return found[-limit:]


def plan(use: Services, row: StudyRecord, at: int | None = None) -> Plan:
    """The search plan that the study is part of."""
    with use.open_study(row, at) as (folded, _):
        return plans.plan(folded, row.stream)


def environment(use: Services, row: StudyRecord) -> Environments:
    """The software that the study's plan was trained with, by kind of device."""
    with use.open_study(row) as (folded, _):
        devices = [Environment(device=each.device, **each.environment) for each in folded.environments.values()]
    return Environments(devices=devices)


def stage_tree(use: Services, row: StudyRecord, at: int | None = None) -> StageTree:
    """The outstanding stages of the study."""
    with use.open_study(row, at) as (folded, study):
        return plans.stage_tree(folded, study)


def trial_log(use: Services, row: StudyRecord, number: int) -> Iterator[str]:
    """The trial's printed output, in parts. Raises `Unknown` if nothing is stored."""
    trial(use, row, number)
    parts = iter(()) if use.logs is None else filter(None, use.logs.printed(row.id, number))
    if (first := next(parts, None)) is None:
        raise Unknown(f"nothing is kept of what trial {number} of study {row.id} printed, if anything was")
    return chain([first], parts)


def trainers(use: Services, limit: int, cursor: str | None = None) -> TrainerPage:
    """A page of the trainers that studies may name."""
    sources = sorted(use.trainers.describe().items())
    listed = [TrainerListed(name=name, version=source.version) for name, source in sources]
    return TrainerPage(**_page(listed, limit, cursor))


def slots(
    use: Services, limit: int, cursor: str | None = None, who: Principal = ANONYMOUS_ADMIN, *, estimates: bool = False
) -> SlotPage:
    """A page of the slots by name, with the work that the caller sees and, on request, the errors of its estimates."""
    errors = estimate_errors(use, who) if estimates else {}
    with use.records.read() as rows:
        sees_all, now, lease = who.project is None, rows.now(), use.lease_seconds
        chains = {row.chain: row for row in rows.chains.live() if sees_all or _sees_chain(rows, row, who)}
        slots = rows.slots.all()
    views = [slot_view(row, chains, now, lease, errors.get(row.name), sees_all=sees_all) for row in slots]
    return SlotPage(**_page(views, limit, cursor))


def demand(use: Services, kind: str | None = None, *, counts_any: bool = False) -> Demand:
    """The number of slots that would have work now. Raises `HttpProblem` without a recent scheduler.

    kind: only slots of this kind of GPU, and work for it. counts_any: include work that any kind may run.
    """
    if (demand := last_demand(use)) is None:
        raise HttpProblem(503, "no scheduler has said of late how many slots would have work: is one running?")
    if kind is None:
        return demand
    with use.records.read() as rows:
        return demand_of_kind(demand, rows.slots.all(), kind, counts_any=counts_any)


def last_demand(use: Services) -> Demand | None:
    """The demand that a scheduler reported recently; None otherwise."""
    with use.records.read() as rows:
        at, (demand, _), now = rows.schedulers.last_tick(), rows.schedulers.last_report(), rows.now()
    if at is None or demand is None or now - at > use.lease_seconds:
        return None
    return Demand(at=at, wanted=demand["busy"] + demand["more"], **demand)


def _sees_chain(rows: RowsPort, chain: ChainRecord, who: Principal) -> bool:
    """Whether the caller may see the project of a chain."""
    study = rows.studies.find(chain.stages[0].study) if chain.stages else None
    return study is not None and who.can_see(study.project)


def tokens(use: Services, limit: int, cursor: str | None = None, who: Principal = ANONYMOUS_ADMIN) -> TokenPage:
    """A page of the tokens, by name, without their digests."""
    with use.records.read() as rows:
        rows_seen = [asdict(row) for row in rows.tokens.all() if who.can_see_all_of(row.project)]
    for row in rows_seen:
        del row["digest"], row["writes"]
    return TokenPage(**_page([Token.model_validate(row) for row in rows_seen], limit, cursor))


def _page(items: list[Any], limit: int, cursor: str | None) -> Json:
    """The fields of a page of a short list."""
    after = parse_cursor(cursor)
    more = str(after + limit) if after + limit < len(items) else None
    return {"items": items[after : after + limit], "next_cursor": more}


def parse_cursor(cursor: str | None) -> int:
    """The number in a cursor, 0 for none. Raises `InvalidField`."""
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 19):
        raise WrongCursor(cursor)
    return int(cursor)
