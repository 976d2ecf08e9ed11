"""The run of each measurement, and its notes about sharing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from stacks import Json

from stagetree.errors import NotFound
from stagetree.sinks import Began, Link, Point, Record, follow
from tests.sinks.scripted import (
    STUDY,
    A,
    B,
    C,
    Scripted,
    busy_study,
    events,
    step_evaluated,
    trial_added,
    trial_extended,
)


class Listing:
    """A sink that lists its rows."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.records = folder, list[Record]()

    def resume(self, study: str, marks: Mapping[int, Any]) -> None: ...

    def write(self, record: Record) -> None:
        self.records.append(record)

    def close(self) -> None: ...

    @property
    def points(self) -> list[tuple[int, int]]:
        """The trial and step of each measurement."""
        return [(record.trial, record.step) for record in self.records if isinstance(record, Point)]

    @property
    def links(self) -> list[tuple[int, int, int]]:
        return [(record.trial, record.other, record.end) for record in self.records if isinstance(record, Link)]


def write_runs(folder: Path, source: Scripted) -> Listing:
    sink = Listing(folder)
    follow(source, STUDY, [sink])
    return sink


def test_a_shared_point_is_in_the_run_of_each_trial_and_marked_as_shared(tmp_path: Path) -> None:
    sink = write_runs(tmp_path, Scripted(busy_study()))
    assert sink.points == [(0, 10), (1, 10), (0, 20), (1, 20), (1, 30), (0, 40), (1, 40)]
    shared = [(each.trial, each.step, each.shared_with) for each in sink.records if isinstance(each, Point)]
    assert [each for each in shared if each[2] is not None] == [(1, 10, 0), (1, 20, 0)]
    assert sink.links == [(1, 0, 20)]


def test_a_trial_extended_along_anothers_path_is_linked_with_it(tmp_path: Path) -> None:
    happened = events(
        trial_added(0, 20, {A: 0}),
        trial_added(1, 40, {A: 0}),
        step_evaluated(A, 20, 0.2),
        step_evaluated(A, 40, 0.4),
        trial_extended(0, 60, {}),
        step_evaluated(A, 60, 0.6),
    )
    sink = write_runs(tmp_path, Scripted(happened))
    assert sink.points == [(0, 20), (1, 20), (1, 40), (0, 40), (0, 60)]
    assert sink.links == [(1, 0, 20), (0, 1, 40)]


def test_points_beyond_a_trials_end_are_its_own_once_it_is_extended(tmp_path: Path) -> None:
    happened = events(trial_added(0, 20, {A: 0}), step_evaluated(A, 30, 0.3), trial_extended(0, 40, {B: 35}))
    assert write_runs(tmp_path, Scripted(happened)).points == [(0, 30)]


def test_points_of_another_study_are_read_from_the_trial(tmp_path: Path) -> None:
    happened = events(trial_added(0, 40, {A: 0, B: 20}), step_evaluated(B, 40, 0.4), first=7)
    curve = [{"step": 10, "metrics": {"accuracy": 0.1}}, {"step": 40, "metrics": {"accuracy": 0.4}}]
    assert write_runs(tmp_path, Scripted(happened, {0: curve})).points == [(0, 10), (0, 40)]


def test_a_study_alone_on_its_plan_requests_no_trial(tmp_path: Path) -> None:
    curve = [{"step": 10, "metrics": {"accuracy": 9.9}}]
    assert (0, 10) not in write_runs(tmp_path, Scripted(events(trial_added(0, 40, {A: 0})), {0: curve})).points


def test_trials_that_share_nothing_are_not_linked(tmp_path: Path) -> None:
    assert write_runs(tmp_path, Scripted(events(trial_added(0, 40, {A: 0}), trial_added(1, 40, {C: 0})))).links == []


def test_a_resumed_study_is_written_further(tmp_path: Path) -> None:
    happened = busy_study()
    write_runs(tmp_path, Scripted(happened[:4]))
    assert write_runs(tmp_path, Scripted(happened)).points == [(0, 20), (1, 20), (1, 30), (0, 40), (1, 40)]


def test_each_of_several_sinks_resumes_at_its_own_position(tmp_path: Path) -> None:
    behind, ahead = Listing(tmp_path / "behind"), Listing(tmp_path / "ahead")
    follow(Scripted(busy_study()[:4]), STUDY, [ahead])
    follow(Scripted(busy_study()), STUDY, [behind, Listing(tmp_path / "ahead")])
    assert len(behind.points) == 7 and ahead.points == [(0, 10), (1, 10)]


def test_new_measurements_are_not_written_for_a_struck_trial(tmp_path: Path) -> None:
    """Another study was first on the plan, so its trials have the measurements, which are new ones now."""

    class Anew(Scripted):
        def trial(self, study: str, number: int) -> Json:
            if number:
                raise NotFound(404, "no such trial")
            return {"path": ["node-alone"], "curve": [{"step": 10, "metrics": {"accuracy": 0.7}}]}

    isolated = ("StudyIsolated", {"study": STUDY, "reason": "x differs", "at": 1.0})
    happened = events(
        trial_added(0, 40, {A: 0}), trial_added(1, 40, {C: 0}), isolated, trial_added(0, 40, {"node-alone": 0}), first=7
    )
    sink = write_runs(tmp_path, Anew(happened))
    assert [(each.run, each.step) for each in sink.records if isinstance(each, Point)] == [("0-alone", 10)]


def trial_with_repeats(trial: int, steps: int, *paths: Json) -> tuple[str, Json]:
    type, data = trial_added(trial, steps, paths[0])
    return type, data | {"repeats": list(paths[1:])}


def test_repeats_have_one_run_of_means_with_their_deviations(tmp_path: Path) -> None:
    happened = events(
        trial_with_repeats(0, 40, {A: 0, B: 20}, {A: 0, C: 20}),
        step_evaluated(A, 20, 0.2),
        step_evaluated(C, 40, 0.6),
        step_evaluated(B, 40, 0.4),
    )
    points = [each for each in write_runs(tmp_path, Scripted(happened)).records if isinstance(each, Point)]
    assert [(each.step, each.at) for each in points] == [(20, 3.0), (40, 5.0)]  # the mean comes with the last of them
    assert points[0].numbers == {"accuracy": 0.2}
    assert points[1].numbers == {"accuracy": 0.5, "accuracy/std": pytest.approx(0.02**0.5)}


def test_repeats_share_only_points_of_all_of_them(tmp_path: Path) -> None:
    happened = events(
        trial_with_repeats(0, 40, {A: 0, B: 20}, {A: 0, C: 20}),
        trial_added(1, 40, {A: 0, B: 20}),
        step_evaluated(A, 20, 0.2),
        step_evaluated(B, 40, 0.4),
        step_evaluated(C, 40, 0.6),
    )
    points = [each for each in write_runs(tmp_path, Scripted(happened)).records if isinstance(each, Point)]
    shared = [(each.trial, each.step, each.metrics["accuracy"], each.shared_with) for each in points]
    assert shared == [(0, 20, 0.2, None), (1, 20, 0.2, 0), (1, 40, 0.4, None), (0, 40, 0.5, None)]


def test_means_of_another_study_belong_to_the_trial(tmp_path: Path) -> None:
    happened = events(trial_with_repeats(0, 40, {A: 0, B: 20}, {A: 0, C: 20}), first=7)
    curve = [{"step": 10, "metrics": {"accuracy": 0.1}}, {"step": 40, "metrics": {"accuracy": 0.5}}]
    sink = write_runs(tmp_path, Scripted(happened, {0: curve}))
    assert [(each.step, each.metrics) for each in sink.records if isinstance(each, Point)] == [
        (10, {"accuracy": 0.1}),
        (40, {"accuracy": 0.5}),
    ]


def test_hyper_parameters_are_flat() -> None:
    hp = {
        "lr": {"family": "warmup", "steps": 5, "then": {"family": "constant", "value": 0.1}},
        "milestones": [1, 2],
        "bs": 64,
    }
    flat = {"lr.family": "warmup", "lr.steps": 5, "lr.then": 0.1, "milestones": "[1, 2]", "bs": 64}
    assert Began(0, hp, at=0.0).values == flat
