"""A study as a film of ten seconds: the rung tree grows above the slots, and captions show the decisions.

A scene is a list of figures, each with the frame in which it appears, computed from the plan and its history.
`film_files` draws it as SVG, GIF or PNG. Times in which no slot trained are cut.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import quantiles
from typing import NamedTuple

from app.domain.search_plan import Study
from app.service.plan_history import DecisionMade, PlanHistory, SlotSpan
from stagetree.models.pages import Tree
from stagetree.models.studies import StudyAnswer
from stagetree.text import decision_text, duration, rank_text

FRAMES, SECONDS = 120, 10

WIDTH, LEFT, RIGHT, TOP, TREE = 960, 62, 30, 84, 300
"""Pixels. The tree is TREE high."""

BOTTOM = TOP + TREE

LANES = 120
"""The greatest height of all slots together."""

MANY = 200
"""More trials than that have small ends and faint lines."""

FLASH = 8
"""The frames for which a promotion is highlighted."""

Point = tuple[float, float]

Measured = tuple[int, float, int]
"""A step, its value, and the frame in which it appears."""


class Figure(NamedTuple):
    """A figure that appears in a frame. kind: line, dot, cross, ring, star, rect or text."""

    kind: str
    frame: int
    role: str
    points: tuple[Point, ...]
    width: float = 1.0
    until: int | None = None
    text: str = ""


@dataclass(slots=True)
class Scene:
    """The figures of a film. captions: by frame. lanes: the top and bottom of the slots, which time uncovers."""

    title: str
    height: float
    lanes: Point
    faint: float
    drawn: list[Figure] = field(default_factory=list)
    captions: list[tuple[int, str]] = field(default_factory=list)


def film(study: Study, shown: StudyAnswer, tree: Tree, history: PlanHistory, version: int) -> Scene:
    """The film up to an event. shown: the study's answer at that event. tree: its nodes with their curves."""
    since, now = study.submitted_version - 1, history.times[version - 1]
    spans = [span for span in history.spans if since < span.begun <= version and span.proof is None]
    clock = Clock((span.begun_at, span.ended_at or now) for span in spans)
    rows = sorted({slot for span in spans for slot in span.slots}, key=lambda slot: (len(slot), slot))
    top = BOTTOM + 40
    lane = min(24.0, LANES / max(1, len(rows)))
    trials = len(tree.trials.node)
    faint = 0.6 * math.sqrt(min(1, MANY / max(1, trials)))
    title = f"{study.spec.name}: {shown.story.question}"
    scene = Scene(title, top + lane * len(rows) + 16, (top, top + lane * len(rows)), faint)
    grown = _RungTree(_mean_tree(tree), _measurement_times(history, tree, version), clock, shown.mode)
    scene.drawn += grown.axes()
    scene.drawn += _slots(spans, rows, tree, study, clock, now, top, lane)
    scene.drawn += grown.lines()
    decisions = [each for each in history.decisions(study.id, version) if each.version <= version]
    scene.drawn += grown.promotions(decisions, history.times)
    scene.drawn += grown.ends(decisions, history.times)
    scene.drawn += grown.winner(shown)
    scene.captions = [*captions(decisions, history.times, clock, study), (FRAMES, shown.story.lines[0])]
    return scene


def _mean_tree(tree: Tree) -> Tree:
    """For a study with repeats, the tree of their means along the nodes of each trial's first repeat."""
    if not any(tree.trials.repeats):
        return tree
    steps = [[int(point[0]) for point in curve] for curve in tree.nodes.means]
    values = [[point[1] for point in curve] for curve in tree.nodes.means]
    return tree.with_fields(nodes=tree.nodes.with_fields(steps=steps, values=values))


def _measurement_times(history: PlanHistory, tree: Tree, version: int) -> dict[tuple[int, int], float]:
    """The time of each measurement by node and step, if known."""
    index = {name: node for node, name in enumerate(tree.nodes.id)}
    first_at: dict[tuple[int, int], float] = {}
    for at, kind, span, step in history.marks:
        node = index.get(history.spans[span].stage.node)
        if node is not None and kind == "evaluated" and at <= version:
            first_at.setdefault((node, step), history.times[at - 1])
    return first_at


# ------------------------------------------------------------------------------------------------------------ the tree


class _RungTree:
    """The rung tree: the position of each measurement, and the frame in which it appears."""

    def __init__(self, tree: Tree, measured: Mapping[tuple[int, int], float], clock: Clock, mode: str) -> None:
        self._tree, self._measured, self._clock = tree, measured, clock
        self._most = max(tree.nodes.end, default=1)
        values = [value for values in tree.nodes.values for value in values]
        self._is_log = bool(values) and min(values) > 0 and max(values) / min(values) > 20
        self._low, self._high = _domain([self._scale(value) for value in values], mode)
        self._points: list[list[Measured]] = []  # of each node
        for node in range(tree.count):
            self._points.append([*self._anchor(node), *self._own(node)])

    def _own(self, node: int) -> Iterator[Measured]:
        nodes = self._tree.nodes
        for step, value in zip(nodes.steps[node], nodes.values[node], strict=True):
            at = self._measured.get((node, step))
            yield step, value, 1 if at is None else self._clock.frame(at)

    def _anchor(self, node: int) -> list[Measured]:
        """The point where the node leaves its parent, interpolated between two measurements."""
        parent, start = self._tree.nodes.parent[node], self._tree.nodes.start[node]
        line = self._points[parent] if parent >= 0 else []
        before = [point for point in line if point[0] <= start]
        after = next((point for point in line if point[0] > start), None)
        if not before:
            return []
        if after is None or before[-1][0] == start:
            return [before[-1]]
        return [(start, self._interpolate(before[-1], after, start), max(before[-1][2], after[2]))]

    def _interpolate(self, one: Measured, other: Measured, step: int) -> float:
        """The value at a step on the drawn line between two measurements."""
        begin, at, end = (math.log1p(each) for each in (one[0], step, other[0]))
        low, high = self._scale(one[1]), self._scale(other[1])
        value = low + (at - begin) / (end - begin) * (high - low)
        return math.exp(value) if self._is_log else value

    def _scale(self, value: float) -> float:
        return math.log(value) if self._is_log else value

    def place(self, step: float, value: float) -> Point:
        """The position of a value, clipped to the drawing."""
        x, y = self._project(step, value)
        return x, min(BOTTOM, max(TOP, y))

    def _project(self, step: float, value: float) -> Point:
        x = LEFT + math.log1p(step) / math.log1p(self._most) * (WIDTH - LEFT - RIGHT)
        return x, BOTTOM - TREE * (self._scale(value) - self._low) / (self._high - self._low)

    def _line(self, one: Measured, other: Measured) -> tuple[Point, ...]:
        """The line between two measurements as far as it is inside the drawing; empty if none of it is."""
        begin, end = (x0, y0), (x1, y1) = self._project(*one[:2]), self._project(*other[:2])
        crossed = (edge for edge in (TOP, BOTTOM) if min(y0, y1) < edge < max(y0, y1))
        corners = sorted((x0 + (edge - y0) / (y1 - y0) * (x1 - x0), float(edge)) for edge in crossed)
        inside = [[point] if TOP <= point[1] <= BOTTOM else [] for point in (begin, end)]
        return *inside[0], *corners, *inside[1]

    def axes(self) -> Iterator[Figure]:
        """The axes, labelled with three values and some steps."""
        for value in (self._low, (self._low + self._high) / 2, self._high) if any(self._tree.nodes.steps) else ():
            natural = math.exp(value) if self._is_log else value
            y = self.place(1, natural)[1]
            yield Figure("line", 0, "line", ((LEFT, y), (WIDTH - RIGHT, y)))
            yield Figure("text", 0, "soft", ((LEFT - 8, y + 4),), 12, text=f"{natural:.3g}")
        steps = sorted({1, self._most, *self._tree.trials.steps})
        last = -1e9
        for step in steps:
            x = self.place(step, 1.0)[0]
            if x - last > 46 and (step == self._most or x < WIDTH - RIGHT - 46):
                yield Figure("text", 0, "soft", ((x + 6, BOTTOM + 18),), 12, text=f"{step:,}")
                last = x

    def lines(self) -> Iterator[Figure]:
        """One line for each shared segment; its width grows with the number of trials."""
        thickest = math.log2(1 + max(self._tree.nodes.trials, default=1))
        exits = self._exits()
        for node, points in enumerate(self._points):
            for one, other in pairwise(points):
                passing = len(exits[node]) - bisect_left(exits[node], other[0])
                if not passing:
                    continue
                width = 1 + round(2 * 8 * math.log2(passing) / thickest) / 2
                if line := self._line(one, other):
                    yield Figure("line", other[2], "soft", line, width)

    def _path_points(self, way: Sequence[Measured]) -> Iterator[Point]:
        if len(way) == 1:
            yield self.place(*way[0][:2])
        for one, other in pairwise(way):
            yield from self._line(one, other)

    def _exits(self) -> list[list[int]]:
        """By node, the steps at which its trials leave it or end."""
        nodes, exits = self._tree.nodes, [list[int]() for _ in range(self._tree.count)]
        for node, parent in enumerate(nodes.parent):
            if parent >= 0:
                exits[parent] += [nodes.start[node]] * nodes.trials[node]
        for node, steps in zip(self._tree.trials.node, self._tree.trials.steps, strict=True):
            exits[node].append(steps)
        return [sorted(steps) for steps in exits]

    def _last_measurement(self, trial: int, step: int) -> Measured | None:
        """A trial's last measurement up to a step."""
        node = self._tree.trials.node[trial]
        while node >= 0:
            before = [point for point in self._points[node] if point[0] <= step]
            if before:
                return before[-1]
            node = self._tree.nodes.parent[node]
        return None

    def promotions(self, decisions: Sequence[DecisionMade], times: Sequence[float]) -> Iterator[Figure]:
        """A ring at the last measurement of each promoted trial."""
        stood: dict[int, int] = {}
        for each in decisions:
            if each.trial is None or each.steps is None or each.trial >= len(self._tree.trials.node):
                continue
            if each.kind == "promote" and (point := self._last_measurement(each.trial, stood.get(each.trial, 0))):
                frame = max(point[2], self._clock.frame(times[each.version - 1]))
                yield Figure("ring", frame, "accent", (self.place(*point[:2]),), 7, until=frame + FLASH)
            stood[each.trial] = each.steps

    def ends(self, decisions: Sequence[DecisionMade], times: Sequence[float]) -> Iterator[Figure]:
        """A dot at the end of each trial; a cross if it was pruned or failed."""
        stopped = {each.trial: times[each.version - 1] for each in decisions if each.kind == "stop"}
        trials, size = self._tree.trials, 2.0 if len(self._tree.trials.node) > MANY else 4.0
        for trial, (steps, state) in enumerate(zip(trials.steps, trials.state, strict=True)):
            if (point := self._last_measurement(trial, steps)) is None:
                continue
            frame = max(point[2], self._clock.frame(stopped[trial])) if trial in stopped else point[2]
            kind = "cross" if state in ("pruned", "failed") else "dot"
            role = "bad" if state == "failed" else "soft" if state == "pruned" else "ink"
            yield Figure(kind, frame, role, (self.place(*point[:2]),), size)

    def winner(self, shown: StudyAnswer) -> Iterator[Figure]:
        """In the last frame, the path and the name of the best trial."""
        best = shown.best
        if best is None or best.trial >= len(self._tree.trials.node):
            return
        node, until, way = self._tree.trials.node[best.trial], self._tree.trials.steps[best.trial], list[Measured]()
        while node >= 0:
            way += [point for point in reversed(self._points[node]) if point[0] <= until]
            node, until = self._tree.nodes.parent[node], self._tree.nodes.start[node]
        if way:
            yield Figure("line", FRAMES, "accent", tuple(dict.fromkeys(self._path_points(way[::-1]))), 4)
            x, y = end = self.place(best.steps, best.value)
            yield Figure("star", FRAMES, "accent", (end,), 10)
            beside, star = (x - 14, max(TOP + 12, y - 10)), "*" if best.exactness else ""
            yield Figure("text", FRAMES, "accent", (beside,), 15, text=f"trial {best.trial}: {best.value:.4g}{star}")


def _domain(values: Sequence[float], mode: str) -> Point:
    """The range of drawn values. Outliers on the worse side are clipped."""
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    if len(values) >= 10:
        cuts = quantiles(values, n=20)
        margin = ((cuts[-1] - cuts[0]) or abs(cuts[-1]) or 1.0) * 0.35
        low, high = (low, min(high, cuts[-1] + margin)) if mode == "min" else (max(low, cuts[0] - margin), high)
    pad = ((high - low) or abs(high) or 1.0) * 0.04
    return low - pad, high + pad


# ---------------------------------------------------------------------------------------------------------- the slots


def _slots(
    spans: Sequence[SlotSpan],
    rows: Sequence[str],
    tree: Tree,
    study: Study,
    clock: Clock,
    now: float,
    top: float,
    lane: float,
) -> Iterator[Figure]:
    """The spans of each slot: strong if several trials share them, faint for other studies."""
    shared = dict(zip(tree.nodes.id, tree.nodes.trials, strict=True))
    for row, slot in enumerate(rows):
        if lane >= 12:
            yield Figure("text", 0, "soft", ((LEFT - 8, top + row * lane + lane / 2 + 4),), 12, text=slot)
    for span in spans:
        begin, end = (LEFT + clock.share(at) * (WIDTH - LEFT - RIGHT) for at in (span.begun_at, span.ended_at or now))
        role = "line" if span.stage.study != study.id else "accent" if shared.get(span.stage.node, 1) > 1 else "soft"
        role = role if span.outcome in ("done", "running", "stopped") else "bad"
        for y in (top + rows.index(slot) * lane for slot in span.slots):
            yield Figure("rect", 0, role, ((begin, y + 1), (max(begin + 0.6, end - 0.6), y + lane - 1)))


# ------------------------------------------------------------------------------------------------------- the time line


class Clock:
    """Time without the gaps in which no slot trained, and its frames."""

    def __init__(self, spans: Iterable[tuple[float, float]]) -> None:
        self._pieces: list[tuple[float, float, float]] = []  # begin, end, and begin on the axis without gaps
        for begin, end in sorted(spans):
            if self._pieces and begin <= self._pieces[-1][1]:
                first, last, at = self._pieces[-1]
                self._pieces[-1] = (first, max(last, end), at)
            else:
                self._pieces.append((begin, end, self._length))

    @property
    def _length(self) -> float:
        return self._pieces[-1][2] + self._pieces[-1][1] - self._pieces[-1][0] if self._pieces else 0.0

    def elapsed(self, at: float) -> float:
        """The seconds since the beginning, without gaps."""
        index = bisect_right(self._pieces, at, key=lambda piece: piece[0]) - 1
        if index < 0:
            return 0.0
        begin, end, shown = self._pieces[index]
        return shown + min(at, end) - begin

    def share(self, at: float) -> float:
        """The share of the time without gaps that has passed, from 0 to 1."""
        return self.elapsed(at) / self._length if self._length else 0.0

    def frame(self, at: float) -> int:
        """The first frame that shows this time."""
        return min(FRAMES, max(1, math.ceil(self.share(at) * FRAMES)))


def captions(
    decisions: Sequence[DecisionMade], times: Sequence[float], clock: Clock, study: Study
) -> Iterator[tuple[int, str]]:
    """The decisions of each frame, with the time since the submission."""
    by_frame: dict[int, list[DecisionMade]] = defaultdict(list)
    for each in decisions:
        if each.trial is not None:
            by_frame[clock.frame(times[each.version - 1])].append(each)
    for frame, made in sorted(by_frame.items()):
        if frame < FRAMES:
            yield frame, f"{duration(times[made[-1].version - 1] - study.submitted_at)}  {_caption_text(made)}"


DID = {
    "start": ("starts", "start"),
    "promote": ("continues", "continue"),
    "stop": ("is stopped", "are stopped"),
    "cancel": ("is cancelled", "are cancelled"),
    "retry": ("is tried again", "are tried again"),
}


def _caption_text(decisions: Sequence[DecisionMade]) -> str:
    first = decisions[0]
    if len(decisions) == 1 and first.kind in ("promote", "stop") and first.trial is not None:
        ranked = rank_text(first.reason)
        return decision_text(first.kind, first.trial, first.steps or 0) + (f": {ranked}" if ranked else "")
    counts = Counter(each.kind for each in decisions)
    parts = [
        f"{number:,} {'trial' if number == 1 else 'trials'} {DID[kind][number > 1]}" for kind, number in counts.items()
    ]
    return ", ".join(parts)
