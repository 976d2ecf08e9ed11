"""Whether an event can follow those before it."""

from __future__ import annotations

from app.domain import events as e
from app.domain.search_plan import SearchPlan
from app.scheduling.replay.report import Json

TYPES: dict[str, type] = {
    **dict.fromkeys(("study", "node", "chain", "slot", "key", "error"), str),
    **dict.fromkeys(("trial", "step", "steps", "index", "size"), int),
    **dict.fromkeys(("hp", "spec", "metrics", "trainer_args"), dict),
    "stages": tuple,
}
"""Of the fields of events, whatever the event."""


class DoesNotFollow(Exception):
    """An event cannot come after those before it; the message says why."""


def check(plan: SearchPlan, event: e.Event) -> None:
    """Where an event that is missing, was moved or changed would not be noticed by folding. Raises `DoesNotFollow`."""
    for name, kind in TYPES.items():
        if not isinstance(value := getattr(event, name, kind()), kind):
            raise DoesNotFollow(f"its {name} is {value!r}")
    match event:
        case e.PlanOpened() if plan.opened is not None:
            raise DoesNotFollow("the plan was opened before")
        case e.StudySubmitted() if event.study in plan.studies:
            raise DoesNotFollow(f"study {event.study} was submitted before")
        case e.TrialAdded() if event.trial != (due := len(plan.studies[event.study].trials)):
            raise DoesNotFollow(f"it adds trial {event.trial} of study {event.study}, and trial {due} would be next")
        case e.TrialExtended() if event.steps <= (steps := plan.trial((event.study, event.trial)).steps):
            raise DoesNotFollow(f"trial {event.trial} of study {event.study} was asked for {steps} steps before")
        case e.Evaluated() if not _are_metrics(event.metrics):
            raise DoesNotFollow(f"its metrics are {event.metrics!r}")
        case e.StageCompleted() | e.StageFailed() if event.index != (at := plan.chains[event.chain].index):
            raise DoesNotFollow(f"it is about stage {event.index} of chain {event.chain}, which is at stage {at}")


def _are_metrics(metrics: e.Metrics) -> bool:
    return all(isinstance(value, int | float | None) for value in metrics.values())


def broken(number: int, event: e.Event, error: Exception) -> Json:
    match error:
        case DoesNotFollow():
            why = str(error)
        case LookupError():
            why = f"it speaks of {error}, and nothing before it made that"
        case _:
            why = f"{type(error).__name__}: {error}"
    problem = f"the log cannot be followed past event {number}, a {type(event).__name__}: {why}"
    return {"event": number, "problem": problem, "recorded": {"type": type(event).__name__}, "derived": None}
