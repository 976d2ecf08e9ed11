"""The rung tree of a study as SVG: the curves of its trials, with shared measurements drawn once.

x is the step, y the metric. The width of a line shows its number of trials. It splits where trials branch, and ends
with its last trial. The SVG has no script, so notebooks and HTML pages can show it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from stagetree.models import TrialDetail
from stagetree.notebook.frames import StudyHistory

WIDTH, HEIGHT = 760, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 28, 24
MOST_RUNGS, MOST_TRIALS = 12, 500
NEARLY_ALL = (0.05, 0.95)
"""The quantiles that set the range of the y axis, so that one bad trial does not flatten the others."""

STYLE = (
    "<style>.st{font:12px system-ui,sans-serif;fill:none;stroke:#8b95a1;stroke-linecap:round;max-width:100%}"
    ".st text{fill:#7a8490;stroke:none}.st .rung{stroke-dasharray:2 3}.st .best{stroke:#2f6fdb}"
    ".st circle{fill:#7a8490;stroke:none}.st .best circle,.st .best text{fill:#2f6fdb}</style>"
)

Place = tuple[int, float]
"""A step, and the metric there."""


@dataclass(frozen=True, slots=True)
class LinePart:
    """A part of a line between two measurements, the number of its trials, and whether the best is one of them."""

    start: Place
    end: Place
    trials: int
    is_best: bool


def segments(record: StudyHistory) -> list[LinePart]:
    """The parts of all lines, the best trial's last, so that they are drawn on top."""
    best = record.study.best.trial if record.study.best else None
    trials: Counter[tuple[str, Place, Place]] = Counter()
    best_path: set[tuple[str, Place, Place]] = set()
    for trial in record.trials:
        parts = list(_parts(record, trial))
        trials.update(parts)
        best_path |= set(parts) if trial.trial == best else set()
    lines = [LinePart(start, end, trials[key], key in best_path) for key in trials for _, start, end in [key]]
    return sorted(lines, key=lambda each: each.is_best)


def _parts(record: StudyHistory, trial: TrialDetail) -> Iterator[tuple[str, Place, Place]]:
    """The pairs of successive measurements of a trial, each with the node of the second."""
    starts = {node.id: node.start for node in record.nodes}
    points = [(step, value) for step, value in record.curve(trial.trial).items() if value is not None]
    for start, end in zip([(0, points[0][1]), *points] if points else [], points, strict=False):
        passed = [node for node in trial.path if starts.get(node, 0) < end[0]]
        yield passed[-1] if passed else "", start, end


def svg(record: StudyHistory) -> str:
    """The drawing, or a sentence if there is nothing to draw or there are too many trials. Its colours suit light and
    dark backgrounds.
    """
    drawn = segments(record)
    if not drawn or len(record.trials) > MOST_TRIALS:
        return f"<p>{len(record.trials)} trials: {'too many to draw' if drawn else 'nothing is measured yet'}.</p>"
    scale = _Scale([each.end for each in drawn])
    body = "".join([*_axes(record, scale), *(_line(each, scale, record) for each in drawn), *_ends(record, scale)])
    label = escape(f"{record.study.study}: {record.study.metric} by step, what trials share is one line")
    view = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="st" {view} role="img" aria-label="{label}">{STYLE}{body}</svg>'
    )


class _Scale:
    """Maps steps (logarithmically) and values to coordinates."""

    def __init__(self, places: Sequence[Place]) -> None:
        values = sorted(value for _, value in places)
        low, high = (values[round(share * (len(values) - 1))] for share in NEARLY_ALL)
        margin = 0.3 * ((high - low) or abs(high) or 1.0)
        self.low, self.high = max(values[0], low - margin), min(values[-1], high + margin)
        self.most = max(step for step, _ in places)

    def x(self, step: float) -> float:
        return round(LEFT + math.log2(1 + step) / math.log2(1 + self.most) * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / ((self.high - self.low) or 1.0)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)


def _axes(record: StudyHistory, scale: _Scale) -> Iterator[str]:
    """The metric's name and range, and the rungs."""
    yield f'<text x="2" y="12">{escape(record.study.metric)}</text>'
    steps = sorted({step for trial in record.trials for step in trial.asked})
    for step in steps if len(steps) <= MOST_RUNGS else steps[-1:]:
        x = scale.x(step)
        yield f'<path class="rung" d="M{x} {TOP}V{HEIGHT - BOTTOM}"/>'
        yield f'<text x="{x}" y="{HEIGHT - 8}" text-anchor="middle">{step}</text>'
    for value in (scale.low, scale.high):
        yield f'<text x="{LEFT - 8}" y="{scale.y(value) + 4}" text-anchor="end">{value:.4g}</text>'


def _line(each: LinePart, scale: _Scale, record: StudyHistory) -> str:
    width = round(1 + 9 * math.log2(each.trials) / math.log2(1 + len(record.trials)), 1)
    (x0, y0), (x1, y1) = ((scale.x(step), scale.y(value)) for step, value in (each.start, each.end))
    look = 'class="best"' if each.is_best else 'opacity="0.6"'
    title = f"<title>{each.trials} trials share this</title>" if each.trials > 1 else ""
    return f'<path {look} stroke-width="{width}" d="M{x0} {y0}L{x1} {y1}">{title}</path>'


def _ends(record: StudyHistory, scale: _Scale) -> Iterator[str]:
    """A dot at the end of each trial, with a tooltip; the best trial also has a label."""
    best = record.study.best.trial if record.study.best else None
    for trial in sorted(record.trials, key=lambda each: each.trial == best):
        points = [(step, value) for step, value in record.curve(trial.trial).items() if value is not None]
        if points:
            x, y = scale.x(points[-1][0]), scale.y(points[-1][1])
            mark = f"; {trial.exactness}" if trial.exactness else ""
            title = escape(f"trial {trial.trial}: {points[-1][1]:.6g} at step {points[-1][0]}, {trial.standing}{mark}")
            dot = f'<circle cx="{x}" cy="{y}" r="3"><title>{title}</title></circle>'
            star = "*" if trial.exactness else ""
            name = f'<text x="{x - 6}" y="{y - 8}" text-anchor="end">trial {trial.trial}{star}</text>'
            yield f'<g class="best">{dot}{name}</g>' if trial.trial == best else dot
