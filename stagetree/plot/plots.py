"""Charts of a study, such as `study.plot.history()`, on new axes or on given ones.

New axes are matplotlib's or, if that is not installed, a plotly figure.

figure, (left, right) = plt.subplots(1, 2)
results = study.results()
results.plot.curves(left)
results.plot.tree(right)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from stagetree.errors import StagetreeError
from stagetree.models import Node, TrialDetail
from stagetree.notebook import frames
from stagetree.notebook.frames import StudyHistory
from stagetree.plot.drawing import BLUE, GRAY, RED, Drawing, LineStyle, drawing_on, shade
from stagetree.plot.picture import segments
from stagetree.sequences import unique_values

Picture: TypeAlias = Any
"""`matplotlib.axes.Axes`, or `plotly.graph_objects.Figure`."""

_MOST_LINES = 12
"""With more requested steps than this, they are probably no rungs, and no lines are drawn for them."""

_BINS = 4
"""The number of groups of a numeric hyper-parameter for `importances`."""


class Plots:
    """Charts of a study's results. Each method returns the axes or the figure that it drew on."""

    def __init__(self, results: StudyHistory) -> None:
        self._results = results

    def __repr__(self) -> str:
        pictures = [name for name, value in vars(Plots).items() if callable(value) and not name.startswith("_")]
        return f"<Plots of {self._results.study.study}: {', '.join(pictures)}>"

    def history(self, on: Picture | None = None) -> Picture:
        """The value of each trial by its number, and the running best as a line; failed trials at the lower edge."""
        drawing, study = drawing_on(on), self._results.study
        valued = self._valued()
        numbers, values = [trial.trial for trial, _ in valued], [value for _, value in valued]
        best = np.maximum.accumulate(values) if study.mode == "max" else np.minimum.accumulate(values)
        drawing.dots(numbers, values, "trials")
        drawing.line(numbers, best.tolist(), LineStyle(name="best so far", is_stepped=True))
        failed = [trial.trial for trial in self._results.trials if trial.state == "failed"]
        if failed:
            drawing.crosses(failed, "failed")
        drawing.legend()
        return _finish(drawing, "trial", study.metric, study.study)

    def curves(self, on: Picture | None = None) -> Picture:
        """The metric by step, a line for each trial (thick for the best), and a vertical line for each rung."""
        drawing, study = drawing_on(on), self._results.study
        best = study.best.trial if study.best else None
        for trial in self._results.trials:
            curve = {step: value for step, value in self._results.curve(trial.trial).items() if value is not None}
            look = LineStyle(2.5 if trial.trial == best else 0.8, name=f"trial {trial.trial}", is_dotted=True)
            drawing.line(list(curve), list(curve.values()), look)
        self._draw_rungs(drawing)
        return _finish(drawing, "step", study.metric, study.study)

    def rung_tree(self, on: Picture | None = None) -> Picture:
        """The metric by step, with shared measurements as one line. Its width shows the number of trials; the best
        trial is blue.
        """
        drawing, study = drawing_on(on), self._results.study
        for each in segments(self._results):
            (x0, y0), (x1, y1) = each.start, each.end
            drawing.line([x0, x1], [y0, y1], LineStyle(1 + np.log2(each.trials), BLUE if each.is_best else GRAY))
        self._draw_rungs(drawing)
        drawing.use_log_scale()
        return _finish(drawing, "step", study.metric, study.study)

    def tree(self, on: Picture | None = None) -> Picture:
        """The trained nodes: shared steps are one line, whose width shows the number of trials, and which splits where
        trials branch.
        """
        drawing = drawing_on(on)
        shape = _Tree(self._results)
        for node, start, end, height in shape.lines():
            drawing.line([start, end], [height, height], LineStyle(1 + np.log2(shape.trials[node]), BLUE))
            if (parent := shape.parents.get(node)) is not None:
                drawing.line([start, start], [shape.heights[parent], height], LineStyle(0.8, BLUE))
        drawing.rows([])
        return _finish(drawing, "step", "", f"{self._results.study.study}: what trials share is one line")

    def slots(self, on: Picture | None = None) -> Picture:
        """The work of each slot over time, in seconds since the study was submitted. Failed stages are red."""
        drawing = drawing_on(on)
        begin, spans = self._results.study.submitted_at, list(self._spans())
        names = sorted({slot for slot, _, _, _ in spans})
        for slot, start, end, is_failed in spans:
            drawing.bar(names.index(slot), start - begin, end - start, RED if is_failed else BLUE)
        drawing.rows(names)
        return _finish(drawing, "seconds", "", self._results.study.study)

    def parallel(self, on: Picture | None = None) -> Picture:
        """A line for each trial across the hyper-parameters that vary, coloured by its value."""
        drawing, study = drawing_on(on), self._results.study
        free, valued = self._free(), self._valued()
        low, high = _ends([value for _, value in valued])
        for trial, value in valued:
            heights = [column.height(trial.trial) for column in free.values()]
            drawing.line(
                list(range(len(free))), heights, LineStyle(color=shade((value - low) / (high - low)), alpha=0.7)
            )
        drawing.columns([f"{name}\n{column.ends}" for name, column in free.items()])
        return _finish(drawing, "", "", f"{study.study}: yellow is a higher {study.metric}, blue a lower one")

    def importance(self, on: Picture | None = None) -> Picture:
        """A bar for each hyper-parameter: its share of the variance of values, see `importances`."""
        drawing, shares = drawing_on(on), self.importances()
        for row, share in enumerate(reversed(shares.values())):
            drawing.bar(row, 0, share, BLUE)
        drawing.rows(list(shares)[::-1])
        return _finish(drawing, "share of the variance", "", self._results.study.study)

    def importances(self) -> dict[str, float]:
        """For each hyper-parameter that varies, the share of the values' variance that it explains, from 0 to 1.

        This is the correlation ratio of each hyper-parameter alone, without interactions. Numbers are divided into up
        to four groups of equal size; each other value is a group. Largest first.
        """
        valued = self._valued()
        values = np.array([value for _, value in valued])
        numbers = [trial.trial for trial, _ in valued]
        shares = {name: _share(column.groups(numbers), values) for name, column in self._free().items()}
        return dict(sorted(shares.items(), key=lambda each: -each[1]))

    def _valued(self) -> list[tuple[TrialDetail, float]]:
        valued = [(trial, trial.value) for trial in self._results.trials if trial.value is not None]
        if not valued:
            raise StagetreeError("there is nothing to draw yet: no trial has a value")
        return valued

    def _draw_rungs(self, drawing: Drawing) -> None:
        steps = sorted({step for trial in self._results.trials for step in trial.asked})
        for step in steps if len(steps) <= _MOST_LINES else []:
            drawing.vertical_line(step)

    def _free(self) -> dict[str, _Column]:
        """The hyper-parameters that vary, and their values by trial."""
        flat = {trial.trial: dict(frames.flat_hp(trial.hp)) for trial in self._results.trials}
        names = dict.fromkeys(name for hp in flat.values() for name in hp)
        columns = {name: {number: hp.get(name) for number, hp in flat.items()} for name in names}
        return {name: _Column(column) for name, column in columns.items() if len(unique_values(column.values())) > 1}

    def _spans(self) -> Iterator[tuple[str, float, float, bool]]:
        """(slot, begin, end, whether it failed) of each ended chain, for each of its slots."""
        assigned: dict[str, tuple[list[str], float]] = {}
        for event in self._results.events:
            chain = event.data.get("chain")
            if event.type == "ChainAssigned":
                assigned[event.data["chain"]] = ([event.data["slot"], *event.data.get("members", ())], event.at)
            elif event.type in ("ChainEnded", "StageFailed") and chain in assigned:
                slots, begin = assigned.pop(chain)
                yield from ((slot, begin, event.at, event.type == "StageFailed") for slot in slots)


class _Column:
    """The values of one hyper-parameter, by trial."""

    def __init__(self, values: Mapping[int, Any]) -> None:
        self._values = values
        known = unique_values(value for value in values.values() if value is not None)
        self._is_number = all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)
        self._known = sorted(known) if self._is_number else sorted(known, key=str)
        self._places = {repr(value): place for place, value in enumerate(self._known)}

    @property
    def ends(self) -> str:
        """The smallest and the largest number, or all values if some are not numbers."""
        if self._is_number:
            return f"{self._known[0]:.3g} to {self._known[-1]:.3g}"
        return ", ".join(map(str, self._known))

    def height(self, trial: int) -> float:
        """The rank of a trial's value among all unique values, scaled to [0, 1]; nan if it has none."""
        rank = self._rank(trial)
        return float("nan") if rank < 0 else rank / max(1, len(self._known) - 1)

    def _rank(self, trial: int) -> int:
        """The rank of a trial's value among all unique values; -1 if it has none."""
        value = self._values[trial]
        return -1 if value is None else self._places[repr(value)]

    def groups(self, trials: Sequence[int]) -> list[int]:
        """The group of each trial."""
        ranks = [self._rank(trial) for trial in trials]
        if not self._is_number or len(self._known) <= _BINS:
            return ranks
        edges = np.quantile(ranks, [number / _BINS for number in range(1, _BINS)])
        return [int(group) for group in np.searchsorted(edges, ranks)]


class _Tree:
    """The height of each node of the plan: leaves side by side, parents at the mean of their children."""

    def __init__(self, results: StudyHistory) -> None:
        passed = [node for trial in results.trials for node in trial.path]
        self.trials = {node: passed.count(node) for node in dict.fromkeys(passed)}
        self._nodes: dict[str, Node] = {node.id: node for node in results.nodes if node.id in self.trials}
        self.parents = {id: node.parent for id, node in self._nodes.items() if node.parent in self._nodes}
        self._ends = _node_ends(results.trials, self._nodes)
        self.heights: dict[str, float] = {}
        self._next = 0.0
        for id in self._nodes:
            if id not in self.parents:
                self._place(id)

    def lines(self) -> Iterator[tuple[str, int, int, float]]:
        """(node, first step, last step, height)."""
        for id, node in self._nodes.items():
            yield id, node.start, self._ends[id], self.heights[id]

    def _place(self, root: str) -> None:
        """Set the heights of a node and its descendants, deepest first. Not recursive, since plans may be deep."""
        children: dict[str, list[str]] = {}
        for id, parent in self.parents.items():
            children.setdefault(str(parent), []).append(id)
        waiting = [(root, False)]
        while waiting:
            id, is_ready = waiting.pop()
            below = children.get(id, [])
            if below and not is_ready:
                waiting += [(id, True), *((child, False) for child in reversed(below))]
            elif below:
                self.heights[id] = sum(self.heights[child] for child in below) / len(below)
            else:
                self.heights[id] = self._next
                self._next += 1


def _node_ends(trials: Sequence[TrialDetail], nodes: Mapping[str, Node]) -> dict[str, int]:
    """The last requested step of each node."""
    ends = {id: node.start for id, node in nodes.items()}
    for trial in trials:
        for id, following in zip(trial.path, [*trial.path[1:], None], strict=True):
            end = nodes[following].start if following else trial.steps
            ends[id] = max(ends[id], min(end, trial.steps))
    return ends


def _share(groups: Sequence[int], values: Any) -> float:
    """The share of the variance of `values` that lies between the groups."""
    total = float(((values - values.mean()) ** 2).sum())
    if total == 0:
        return 0.0
    labels = np.array(groups)
    between = sum(
        (labels == label).sum() * (values[labels == label].mean() - values.mean()) ** 2 for label in set(groups)
    )
    return float(between) / total


def _ends(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if low < high else (low, low + 1)


def _finish(drawing: Drawing, x: str, y: str, title: str) -> Picture:
    drawing.set_titles(x, y, title)
    return drawing.result
