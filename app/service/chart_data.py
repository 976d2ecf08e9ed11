"""The data of a study's charts and films, as plain functions, like `app.service.queries`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from app.domain.leaderboard import build_leaderboard
from app.domain.search_plan import get_trial
from app.events import StudyRecord
from app.service.services import HttpProblem, Services
from app.service.views import documents, film, film_files, pictures, side_by_side, trial_order
from stagetree.models.pages import History, Importance, Rungs, Schedules, SideBySide, Timeline, Tree


def tree(use: Services, row: StudyRecord, points: int, at: int | None = None) -> Tree:
    """The study's part of the plan, by column."""
    with use.open_study(row, at) as (plan, study):
        return pictures.tree(plan, study, points)


def rungs(use: Services, row: StudyRecord, at: int | None = None) -> Rungs:
    """The study's rungs with their trials."""
    with use.open_study(row, at) as (_, study):
        return pictures.rungs(study)


def timeline(use: Services, row: StudyRecord, at: int | None = None) -> Timeline:
    """The spans of each slot over time."""
    with use.open_study(row, at) as (plan, study), use.plan_histories.holding(row.stream, plan.version) as plan_history:
        return pictures.timeline(plan_history, study, study.submitted_version - 1, plan.version)


def sharing_comparison(use: Services, row: StudyRecord, at: int | None = None) -> SideBySide:
    """The study as it happened, and a schedule without sharing, on one clock."""
    with use.open_study(row, at) as (plan, study), use.plan_histories.holding(row.stream, plan.version) as plan_history:
        return side_by_side.side_by_side(plan, study, plan_history, plan.version)


def history(use: Services, row: StudyRecord, at: int | None = None) -> History:
    """The decisions, and how the best result improved."""
    with use.open_study(row, at) as (plan, study), use.plan_histories.holding(row.stream, plan.version) as plan_history:
        return pictures.history(plan_history, study, study.submitted_version - 1, plan.version)


FILM_POINTS = 30
"""The points of the curve in each node."""


def render_film(
    use: Services, row: StudyRecord, kind: str, at: int | None = None, word: Callable[[str], str] | None = None
) -> bytes:
    """The study as a film in svg or gif, or its last frame as png. Raises `HttpProblem` without Pillow.

    word: maps each text, for redaction.
    """
    scene = _scene(use, row, at)
    if word is not None:
        scene = film_files.replace_texts(scene, word)
    if kind == "svg":
        return film_files.svg(scene).encode()
    try:
        return use.compute(film_files.gif if kind == "gif" else film_files.png, scene)
    except ImportError:
        needs = f"a {kind.upper()} needs Pillow, which is not installed: pip install 'stagetree[plots]'"
        raise HttpProblem(501, needs) from None


def _scene(use: Services, row: StudyRecord, at: int | None) -> film.Scene:
    with use.open_study(row, at) as (plan, study), use.plan_histories.holding(row.stream, plan.version) as plan_history:
        shown = documents.study(plan, study.id, now=plan_history.times[plan.version - 1], with_trials=False)
        return film.film(study, shown, pictures.tree(plan, study, FILM_POINTS), plan_history, plan.version)


def importance(use: Services, row: StudyRecord, rung: int | Literal["end"] | None, at: int | None = None) -> Importance:
    """The importance of hyper-parameters for the results at a rung, or at each trial's end.

    The default is the furthest rung with enough results: short trials say little about longer ones.
    """
    from app.service.views.importance import importance as weighed

    with use.open_study(row, at) as (plan, study):
        columns, mode = trial_order.columns(documents.trials(plan, study)).columns, study.spec.mode
        board, values = build_leaderboard(study), columns.get("value", [])
        number = board.importance_rung() if rung is None else rung if isinstance(rung, int) else None
        if number is not None:
            there: dict[int, float] = {}
            for each in board.ladder():  # of all brackets
                there |= each.values if each.number == number else {}
            values = [there.get(trial.number) for trial in study.trials]
    return weighed(columns, values, mode, number)


def schedules(use: Services, row: StudyRecord, number: int, points: int) -> Schedules:
    """Each hyper-parameter of a trial at some of its steps. Raises `Unknown`."""
    with use.open_study(row) as (_, study):
        return pictures.schedules(study, get_trial(study, number), points)
