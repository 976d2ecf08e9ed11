"""A film of a study: nothing is seen before it happened, everything at the end, and both files can be played."""

from __future__ import annotations

import io
import math
import xml.etree.ElementTree as ET
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.search_plan import Study
from app.service.plan_history import PlanHistory
from app.service.views import documents, pictures
from app.service.views.film import BOTTOM, FRAMES, TOP, TREE, WIDTH, Clock, Point, Scene, film
from app.service.views.film_files import CARD, gif, png, svg
from app.simulation.simulator import Simulator
from tests.domain.test_accounting import asha, simulator, submit
from tests.plans import max_examples, steps, study_of
from tests.strategies import Trial, spaces

ASHA = {"kind": "asha", "num_trials": 2000, "min_steps": 1, "max_steps": 27, "reduction_factor": 3}


def scene(simulated: Simulator, study: Study) -> tuple[Scene, Any, PlanHistory]:
    """The film of a simulated study, with the tree and the history that it is of."""
    history, plan = PlanHistory(), simulated.plan
    history.take_all(simulated.log())
    tree = pictures.tree(plan, study, 1000)
    shown = documents.study(plan, study.id, now=0.0, with_trials=False)
    return film(study, shown, tree, history, plan.version), tree, history


def simulate(spec: Any) -> tuple[Simulator, Study]:
    """A study to its end."""
    simulated = simulator()
    study = submit(simulated, spec)
    simulated.run()
    return simulated, study


@pytest.mark.slow
@max_examples(30)
@given(spaces(), st.integers(0, 40), st.sampled_from(["", "lose", "fail"]))
def test_it_shows_all_that_was_measured_and_no_more(trials: list[Trial], turns: int, accident: str) -> None:
    """At any time of a study: one piece of line for each measurement that has one before it."""
    simulated = simulator({3: accident} if accident else None)
    study = submit(simulated, study_of(trials, eval_every=2).to_json())
    for _ in range(turns):
        simulated.advance()
    found, tree, _ = scene(simulated, study)
    assert all(0 <= each.frame <= FRAMES for each in found.drawn)
    for each in found.drawn:
        for x, y in each.points:
            assert -1 <= x <= WIDTH and 0 <= y <= found.height, each
    measured = sum(map(len, tree.nodes.steps))
    lines = [each for each in found.drawn if (each.kind, each.role) == ("line", "soft")]
    assert len(lines) <= measured + tree.count
    ended = [each for each in found.drawn if each.kind in ("dot", "cross")]
    assert len(ended) <= len(study.trials)
    assert found.captions[-1] == (FRAMES, documents.study(simulated.plan, study.id, now=0.0)["story"]["lines"][0])
    drawn = ET.fromstring(svg(found))
    assert drawn.get("data-frames") == str(FRAMES)


def test_promotions_are_seen_when_and_where_they_were_made() -> None:
    simulated, study = simulate(asha())
    found, _, history = scene(simulated, study)
    promoted = [each for each in history.decisions(study.id) if each.kind == "promote"]
    rings = [each for each in found.drawn if each.kind == "ring"]
    assert len(rings) == len(promoted) > 2
    frames = [each.frame for each in rings]
    assert frames == sorted(frames) and frames[0] < FRAMES / 2
    for ring in rings:  # each is where a line ends that is seen by then
        ends = [each for each in found.drawn if each.kind in ("line", "dot") and each.frame <= ring.frame]
        reached = {each.points[-1] for each in ends} | {each.points[0] for each in ends}
        assert ring.points[0] in reached or ring.points[0][1] <= TOP + TREE
    stars = [each for each in found.drawn if each.kind == "star"]
    assert [each.frame for each in stars] == [FRAMES]


def test_a_branch_is_not_seen_before_what_it_branches_off() -> None:
    simulated, study = simulate(asha(eval_every=1))
    found, _, _ = scene(simulated, study)
    seen: dict[Any, int] = {}
    lines = [each for each in found.drawn if (each.kind, each.role) == ("line", "soft")]
    for each in sorted(lines, key=lambda each: each.frame):
        seen.setdefault(each.points[-1], each.frame)
        assert seen.get(each.points[0], 0) <= each.frame


def test_a_branch_begins_on_the_line_that_it_leaves() -> None:
    """Between two measurements of the trunk, on the straight line that is drawn from one to the next."""
    tails = [({"lr": steps(0.1, 0.01 * at, milestones=[at])}, 60) for at in (40, 45, 50, 55)]
    simulated, study = simulate(study_of([({"lr": 0.1}, 90), *tails], eval_every=30).to_json())
    found, _, _ = scene(simulated, study)
    lines = [each.points for each in found.drawn if (each.kind, each.role) == ("line", "soft")]
    trunk = [piece for points in lines[:2] for piece in pairwise(points)]
    branches = [points[0] for points in lines[2:]]
    assert len(branches) == len(tails)
    for point in branches:
        assert min(distance(point, piece) for piece in trunk) < 0.01, (point, trunk)


def distance(point: Point, way: tuple[Point, Point]) -> float:
    """Of a point from a straight piece of a line."""
    (x0, y0), (x1, y1), (x, y) = *way, point
    length = math.hypot(x1 - x0, y1 - y0)
    along = ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / length**2 if length else 0.0
    along = min(1.0, max(0.0, along))
    return math.hypot(x - x0 - along * (x1 - x0), y - y0 - along * (y1 - y0))


def test_time_in_which_no_slot_trained_is_left_out() -> None:
    clock = Clock([(100.0, 110.0), (105.0, 120.0), (1000.0, 1020.0)])
    assert [clock.share(at) for at in (0, 100, 110, 120, 500, 1000, 1010, 2000)] == [0, 0, 0.25, 0.5, 0.5, 0.5, 0.75, 1]
    assert Clock([]).frame(5.0) == 1


@pytest.mark.slow
def test_before_anything_was_trained_there_is_a_film_all_the_same() -> None:
    simulated = simulator()
    found, _, _ = scene(simulated, submit(simulated, asha()))
    assert ET.fromstring(svg(found)) is not None and gif(found).startswith(b"GIF89a")


def test_names_are_no_markup() -> None:
    simulated = simulator()
    study = submit(simulated, asha(name="a</style><b>&"))
    found, _, _ = scene(simulated, study)
    title = ET.fromstring(svg(found)).find("{http://www.w3.org/2000/svg}title")
    assert title is not None and title.text == "a</style><b>&: Which lr and bs give the highest accuracy?"


@pytest.mark.parametrize(("mode", "far"), [("min", 1e-3), ("max", 1e3)])
def test_the_best_trial_is_in_the_drawing_however_far_it_is_ahead(mode: str, far: float) -> None:
    """Its way ran along the edge, among 2,000 trials whose losses spread over two orders of magnitude."""
    simulated = simulator()
    space = {"lr": 0.1, "bs": {"uniform": [0, 1]}}
    study = submit(simulated, asha(mode=mode, tuner={**ASHA, "num_trials": 60}, space=space))
    simulated.run()
    history, plan = PlanHistory(), simulated.plan
    history.take_all(simulated.log())
    tree = pictures.tree(plan, study, 1000)
    shown = documents.study(plan, study.id, now=0.0, with_trials=False)
    assert shown.best is not None
    node = tree.trials.node[shown.best.trial]
    tree.nodes.values[node][tree.nodes.steps[node].index(shown.best.steps)] = far
    ahead = shown.with_fields(best=shown.best.with_fields(value=far))
    star = next(each for each in film(study, ahead, tree, history, plan.version).drawn if each.kind == "star")
    assert TOP + 1 < star.points[0][1] < TOP + TREE - 1


def test_no_line_runs_along_the_edge() -> None:
    """Values beyond it looked constant there: lines leave the drawing instead."""
    simulated = simulator()
    space = {"lr": 0.1, "bs": {"uniform": [0, 1]}}
    study = submit(simulated, asha(mode="min", tuner={**ASHA, "num_trials": 60}, space=space))
    simulated.run()
    history, plan = PlanHistory(), simulated.plan
    history.take_all(simulated.log())
    tree = pictures.tree(plan, study, 1000)
    bad = min(
        (node for node in range(tree.count) if len(tree.nodes.values[node]) > 1),
        key=lambda node: len(tree.nodes.values[node]),
    )
    tree.nodes.values[bad][:] = [1e3 - step for step in range(len(tree.nodes.values[bad]))]
    shown = documents.study(plan, study.id, now=0.0, with_trials=False)
    drawn = film(study, shown, tree, history, plan.version).drawn
    lines = [each.points for each in drawn if each.kind == "line" and each.role in ("soft", "accent")]
    assert lines
    assert not [line for line in lines for one, other in pairwise(line) if one[1] == other[1] in (TOP, BOTTOM)]


@pytest.mark.slow
def test_a_gif_grows_and_then_rests() -> None:
    image = pytest.importorskip("PIL.Image")
    simulated, study = simulate(asha())
    picture = image.open(io.BytesIO(gif(scene(simulated, study)[0])))
    colours = []
    for number in (0, picture.n_frames // 2, picture.n_frames - 1):
        picture.seek(number)
        colours.append(sum(picture.convert("L").histogram()[:200]))
    assert colours == sorted(set(colours)) and picture.info["duration"] >= 3000


def test_a_picture_is_the_end_of_the_film() -> None:
    """The winner's way and the slots are on it, as large as what shows links wants it."""
    image = pytest.importorskip("PIL.Image")
    simulated = simulator()
    study = submit(simulated, asha())
    before = image.open(io.BytesIO(png(scene(simulated, study)[0])))
    simulated.run()
    after = image.open(io.BytesIO(png(scene(simulated, study)[0])))
    assert before.size == after.size == CARD and after.format == "PNG"
    accent = (0x1F, 0x63, 0xD0)
    counts = [{colour: number for number, colour in each.getcolors(CARD[0] * CARD[1])} for each in (before, after)]
    assert accent not in counts[0] and counts[1][accent] > 1000


@pytest.mark.night
def test_two_thousand_trials_are_one_small_file() -> None:
    simulated = simulator(slots=16)
    space = {"lr": [0.1, {"family": "multistep", "init": 0.1, "milestones": [4], "gamma": {"uniform": [0, 1]}}]}
    study = submit(simulated, asha(tuner=ASHA, space={**space, "bs": {"uniform": [0, 1]}}))
    simulated.run()
    text = svg(scene(simulated, study)[0])
    assert len(study.trials) == 2000 and len(text) < 1_000_000
    assert len(list(ET.fromstring(text).iter())) < 3000
