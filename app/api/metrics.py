"""A few numbers in the text format of Prometheus. All come from rows: no plan is looked at, however many there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from app.api.services import Services
from app.api.views import slots as slot_views
from app.domain.states import ChainState, StudyState

LIVE_CHAINS = (ChainState.READY, ChainState.RUNNING, ChainState.SAVING)


def text(use: Services) -> str:
    """All of them, as of now."""
    with use.records.read() as rows:
        now, last_tick, slots = rows.now(), rows.schedulers.last_tick(), rows.slots.all()
        studies = rows.studies.count_by_state()
        chains = Counter(row.state for row in rows.chains.live())
    states = Counter(slot_views.state_of(row, now, use.lease_seconds) for row in slots)
    checks = {name: int(said == "ok") for name, said in use.checks.ask().items()}
    ticked = {} if last_tick is None else {"": round(now - last_tick, 3)}
    lines = [
        *_metric("stagetree_studies", "Studies by state.", "state", {s: studies.get(s, 0) for s in StudyState}),
        *_metric("stagetree_slots", "Slots by state.", "state", {s: states[s] for s in slot_views.STATES}),
        *_metric("stagetree_chains", "Chains under way by state.", "state", {s: chains[s] for s in LIVE_CHAINS}),
        *_metric("stagetree_log_head", "The position of the last event.", "", {"": use.log.head()}),
        *_metric("stagetree_scheduler_tick_age_seconds", "Since a scheduler last looked.", "", ticked),
        *_metric("stagetree_ready", "Whether a check of readiness is met.", "check", checks),
    ]
    return "\n".join(lines) + "\n"


def _metric(name: str, meaning: str, label: str, values: Mapping[str, float]) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} gauge"
    for value, number in values.items():
        yield f'{name}{{{label}="{value}"}} {number}' if label else f"{name} {number}"
