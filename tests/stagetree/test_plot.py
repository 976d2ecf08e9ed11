"""Pictures of a study draw its results."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot
from plotly.graph_objects import Figure

from stagetree.errors import StagetreeError
from stagetree.models import Event, Node, StudyAnswer, TrialDetail
from stagetree.plot.picture import segments, svg
from stagetree.results import Results

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    yield
    pyplot.close("all")


def event(position: int, type: str, at: float, **data: Any) -> Event:
    return Event(position=position, type=type, at=at, data=data)


def trial(number: int, values: dict[int, float], path: list[str], **fields: Any) -> TrialDetail:
    curve = [{"step": step, "metrics": {"acc": value}} for step, value in values.items()]
    last = list(values.values())[-1] if values else None
    given: dict[str, Any] = {
        "state": "completed",
        "value": last,
        "asked": list(values),
        "steps": max(values, default=4),
    }
    return TrialDetail.from_json({"trial": number, "curve": curve, "path": path, **given, **fields})


@pytest.fixture
def results() -> Results:
    """Three trials that share the first four steps, one of them failed; two continue to step 8."""
    study = StudyAnswer(study="mine", state="completed", metric="acc", mode="max", submitted_at=100.0)
    constant = [{"family": "constant", "value": value} for value in (64, 64, 128)]
    rates = [{"family": "exponential", "init": 0.1, "gamma": gamma} for gamma in (0.9, 0.8, 0.9)]
    hp = [{"lr": lr, "bs": bs} for lr, bs in zip(rates, constant, strict=True)]
    trials = [
        trial(0, {4: 0.5, 8: 0.9}, ["root", "left"], hp=hp[0]),
        trial(1, {4: 0.5, 8: 0.7}, ["root", "right"], hp=hp[1]),
        trial(2, {}, ["root"], hp=hp[2], state="failed", error="ValueError: no, after step 3"),
    ]
    events = [
        *(event(number, "TrialAdded", 100.0 + number, trial=number, reason={"rung": 0}) for number in range(3)),
        event(3, "ChainAssigned", 103.0, chain="c1", slot="gpu0"),
        event(4, "Evaluated", 104.0, node="root", step=4),
        event(5, "ChainEnded", 105.0, chain="c1"),
        event(6, "TrialExtended", 105.0, trial=0, reason={"rung": 1, "rank": 1, "cut": 1, "of": 3}),
        event(7, "ChainAssigned", 105.0, chain="c2", slot="gpu1"),
        event(8, "Evaluated", 108.0, node="left", step=8),
        event(9, "StageFailed", 109.0, chain="c2"),
    ]
    nodes = [
        Node(id="root", start=0),
        Node(id="left", parent="root", start=4),
        Node(id="right", parent="root", start=4),
    ]
    return Results(study, trials, events, nodes)


def test_history(results: Results) -> None:
    trials, best, failed = results.plot.history().lines
    assert list(trials.get_ydata()) == [0.9, 0.7]
    assert list(best.get_ydata()) == [0.9, 0.9]
    assert list(failed.get_xdata()) == [2]


def test_curves_with_rungs(results: Results) -> None:
    lines = results.plot.curves().lines
    assert [list(line.get_ydata()) for line in lines[:3]] == [[0.5, 0.9], [0.5, 0.7], []]
    assert [list(line.get_xdata()) for line in lines[3:]] == [[4, 4], [8, 8]]


def test_the_tree_has_one_line_for_shared_steps(results: Results) -> None:
    root, left, _, right, _ = results.plot.tree().lines
    assert (list(root.get_xdata()), list(left.get_xdata()), list(right.get_xdata())) == ([0, 4], [4, 8], [4, 8])
    assert root.get_linewidth() > left.get_linewidth()
    heights = [line.get_ydata()[0] for line in (root, left, right)]
    assert heights[0] == (heights[1] + heights[2]) / 2


def test_the_rung_tree_has_one_line_for_shared_steps(results: Results) -> None:
    results = results_with_best(results)
    drawn = segments(results)
    assert sum(each.trials for each in drawn) == sum(
        len(list(known_values(results, trial.trial))) for trial in results.trials
    )
    assert max(each.trials for each in drawn) > 1 and drawn[-1].is_best
    widths = [line.get_linewidth() for line in results.plot.rung_tree().lines[: len(drawn)]]
    assert widths == [1 + math.log2(each.trials) for each in drawn]


def results_with_best(results: Results) -> Results:
    """The same, with the best trial named as the server names it."""
    best = {"trial": 0, "value": 0.9, "steps": 8, "hp": {}}
    study = StudyAnswer.from_json(results.study.to_json() | {"best": best})
    return Results(study, results.trials, results.events, results.nodes)


def known_values(results: Results, trial: int) -> list[float]:
    return [value for value in results.curve(trial).values() if value is not None]


def test_a_notebook_shows_the_rung_tree_without_a_script(results: Results) -> None:
    shown = results_with_best(results)._repr_html_()
    picture = ElementTree.fromstring(shown.partition("</p>")[2])
    assert "script" not in shown
    assert "trial 0: 0.9 at step 8" in "".join(picture.itertext()) and "2 trials share this" in shown


def test_unmeasured_values_are_not_drawn(results: Results) -> None:
    assert "nothing is measured yet" in svg(Results(results.study, [], [], []))


def test_slots_over_time(results: Results) -> None:
    axes = results.plot.slots()
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(3, 2), (5, 4)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["gpu0", "gpu1"]


def test_parallel_coordinates_have_only_varying_parameters(results: Results) -> None:
    axes = results.plot.parallel()
    assert [label.get_text() for label in axes.get_xticklabels()] == ["lr.gamma\n0.8 to 0.9", "bs\n64 to 128"]
    assert [list(line.get_ydata()) for line in axes.lines] == [[1, 0], [0, 0]]


def test_importance_is_the_share_of_the_variance(results: Results) -> None:
    assert results.plot.importances() == {"lr.gamma": 1.0, "bs": 0.0}
    assert [bar.get_width() for bar in results.plot.importance().patches] == [0.0, 1.0]


def test_importance_of_noise_is_small() -> None:
    rng = np.random.default_rng(0)
    study = StudyAnswer(study="mine", state="completed", metric="acc", mode="max")
    drawn = [(float(x), float(y)) for x, y in rng.random((200, 2))]
    hp = [{"x": {"family": "constant", "value": x}, "y": {"family": "constant", "value": y}} for x, y in drawn]
    trials = [trial(n, {4: drawn[n][0] ** 2}, ["root"], hp=hp[n]) for n in range(200)]
    shares = Results(study, trials, [], []).plot.importances()
    assert list(shares) == ["x", "y"] and shares["x"] > 0.8 and shares["y"] < 0.1


def test_given_axes_are_drawn_on(results: Results) -> None:
    axes = pyplot.subplots()[1]
    assert results.plot.history(axes) is axes


def test_the_data_frame_has_all_trials(results: Results) -> None:
    frame = results.dataframe()
    assert list(frame["rung"]) == [1, 0, 0]
    assert frame["reason"][0] == "rank 1 of 3, the best one is promoted"
    assert (frame["added"][0], frame["ended"][0], frame["seconds"][1]) == (100.0, 108.0, 3.0)
    assert list(frame["acc@4"][:2]) == [0.5, 0.5]
    assert frame["error"][2] == "ValueError: no, after step 3"


def test_nothing_to_draw_and_nothing_to_draw_with(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = Results(results.study, [], [], [])
    with pytest.raises(StagetreeError, match="there is nothing to draw yet"):
        empty.plot.history()
    for library in ("matplotlib", "plotly.graph_objects"):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(StagetreeError, match=r"^a plot needs matplotlib or plotly: pip install 'stagetree\[plots\]'"):
        results.plot.history()


def test_without_matplotlib_the_same_pictures_are_plotly_s(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many lines and bars, with the same numbers and widths."""
    results = results_with_best(results)
    for name in ("history", "curves", "rung_tree", "tree", "parallel"):
        lines = [line for line in getattr(results.plot, name)().lines if len(line.get_xdata()) and not is_upright(line)]
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "matplotlib", None)
            drawn = [trace for trace in getattr(results.plot, name)().data if len(trace.x)]
        assert [(list(trace.x), list(trace.y)) for trace in drawn] == [
            (list(line.get_xdata()), list(line.get_ydata())) for line in lines
        ]
        widths = [(trace.line.width, line.get_linewidth()) for trace, line in zip(drawn, lines, strict=True)]
        assert all(one == other for one, other in widths if one)
    figure = Figure()
    assert results.plot.slots(figure) is figure
    assert [(bar.base[0], bar.x[0]) for bar in figure.data] == [(3, 2), (5, 4)]
    assert list(results.plot.importance(Figure()).layout.yaxis.ticktext) == ["bs", "lr.gamma"]
    assert "<div" in figure.to_html()


def is_upright(line: Any) -> bool:
    """A rung, which plotly draws as a shape."""
    return bool(line.get_linestyle() == ":")
