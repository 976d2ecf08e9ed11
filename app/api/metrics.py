"""A few numbers in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from app.api.services import Services
from app.domain.states import StudyState

STUDY_STATES = tuple(StudyState)
STEPS = ("requested", "unique", "executed")


def text(use: Services) -> str:
    """All of them, as of now."""
    states, steps = _studies(use)
    with use.records.read() as rows:
        busy = Counter("busy" if row.chain else "idle" for row in rows.slots.all())
    lines = [
        *_metric("stagetree_studies", "gauge", "Studies by state.", "state", {s: states[s] for s in STUDY_STATES}),
        *_metric("stagetree_slots", "gauge", "Slots by state.", "state", {s: busy[s] for s in ("idle", "busy")}),
        *_metric("stagetree_steps", "gauge", "Training steps of all studies.", "kind", {s: steps[s] for s in STEPS}),
        *_metric("stagetree_log_head", "gauge", "The position of the last event.", "", {"": use.log.head()}),
    ]
    return "\n".join(lines) + "\n"


def _studies(use: Services) -> tuple[Counter[str], Counter[str]]:
    """Studies by state, and their steps by kind."""
    states, steps = Counter[str](), Counter[str]()
    for stream in use.log.streams():
        with use.plans.holding(stream) as plan:
            for study in plan.studies.values():
                states[study.state] += 1
                steps.update({kind: getattr(study, kind) for kind in STEPS})
    return states, steps


def _metric(name: str, kind: str, meaning: str, label: str, values: Mapping[str, int]) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"
    for value, number in values.items():
        yield f'{name}{{{label}="{value}"}} {number}' if label else f"{name} {number}"
