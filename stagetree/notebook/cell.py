"""A study under way as a notebook's cell shows it: bars, rungs, the best trial, the last decision, and each slot."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from stagetree.models import Decision, StudyAnswer, UnderWay
from stagetree.notebook import frames
from stagetree.text import FINAL, decided, duration, saved_text

SLOTS = 16
"""How many slots are shown; the others are counted."""

_CELL = "text-align:left;padding:0 1em 0 0"


def html(study: StudyAnswer) -> str:
    """The study as it stands."""
    rows = "".join(
        f'<tr><td style="{_CELL};opacity:.6">{escape(label)}</td><td style="{_CELL}">{shown}</td></tr>'
        for label, shown in _rows(study)
    )
    return f"<div>{_title(study)}<table>{rows}</table></div>"


def _title(study: StudyAnswer) -> str:
    left = study.progress.seconds_left
    time = f"{duration(study.wall_seconds)} elapsed" + (f", about {duration(left)} left" if left else "")
    return f"<b>{escape(study.study)}</b> · {escape(study.tuner)} · {escape(study.state)} · {time}"


def _rows(study: StudyAnswer) -> Iterator[tuple[str, str]]:
    """A label and HTML for each."""
    progress, over = study.progress, study.state in FINAL
    if progress.trials is not None:
        failed = f" <b style='color:red'>{study.counts['failed']} failed</b>" if study.counts.get("failed") else ""
        resting = f" {progress.trials.resting} {'at rungs' if progress.rungs else 'suspended'}"
        yield (
            "trials",
            _bar(progress.trials.done, progress.trials.expected)
            + failed
            + (resting if progress.trials.resting else ""),
        )
    if progress.steps is not None:
        yield "steps", _bar(progress.steps.done, progress.steps.expected, about=bool(progress.rungs) and not over)
    if progress.rungs:
        yield "rungs", " · ".join(f"step {each.steps}: {each.arrived}/{each.entered}" for each in progress.rungs)
    yield "saved", saved_text(study.cost.saved_by_sharing, study.cost.saved_by_stopping)
    if study.best is not None:
        value, hp = f"<b>{study.best.value:.6g}</b>", "  ".join(_words(study.best.hp))
        yield (
            "best",
            f"{escape(study.metric)} {value} (trial {study.best.trial} after {study.best.steps} steps) {escape(hp)}",
        )
    if progress.last is not None:
        yield "last", escape(_decision(progress.last))
    if study.exactness.mark:
        yield "exact", escape(study.exactness.text)
    if study.ending:
        yield "ended", escape(study.ending)
    if study.error:
        yield "error", f"<span style='color:red'>{escape(study.error)}</span>"
    yield from _slots(progress.running)


def _bar(done: int, expected: int | None, *, about: bool = False) -> str:
    if expected is None:
        return str(done)
    return f'<progress value="{done}" max="{max(expected, 1)}"></progress> {done}/{"about " if about else ""}{expected}'


def _words(hp: dict[str, object]) -> Iterator[str]:
    return (f"{name}={value}" for name, value in frames.flat_hp(hp))


def _decision(last: Decision) -> str:
    return f"{decided(last.kind, last.trial, last.steps)}: {frames.words(last.reason)}".removesuffix(": ")


def _slots(running: list[UnderWay]) -> Iterator[tuple[str, str]]:
    shown = sorted(running, key=lambda each: each.slot)
    for each in shown[:SLOTS]:
        values = "  ".join(f"{name} {text}" for name, text in each.forms.items())
        bar = f'<progress value="{each.step - each.start}" max="{max(each.end - each.start, 1)}"></progress>'
        yield each.slot, f"{bar} {each.step}/{each.end} · {_served(each)} · {escape(values)}"
    if len(shown) > SLOTS:
        yield "", f"and {len(shown) - SLOTS} more slots"


def _served(run: UnderWay) -> str:
    """Which trials the stage is for."""
    if not run.trials:
        return "another study's"
    return f"trial {run.trials[0]}" if run.trial_count == 1 else f"{run.trial_count} trials share it"
