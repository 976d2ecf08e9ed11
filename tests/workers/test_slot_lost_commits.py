"""A slot whose database has lost its last commits, on real databases; tests/world has such losses at any moment."""

from __future__ import annotations

from typing import Any

import pytest
from cluster import Cluster
from lost_events import copy_tables
from studies import spec

from app.domain import events as e
from app.domain.terms import StudyId


def curve(cluster: Cluster, study: StudyId) -> dict[int, Any]:
    """The metrics at each step of the only trial."""
    (trial,) = cluster.study(study).trials
    return dict(cluster.plan.curve(trial))


def submit(cluster: Cluster, tag: str) -> StudyId:
    """A trial that is one stage, and is measured four times in it."""
    return cluster.submit(spec(({}, 8), eval_every=2, trainer_args={"tag": tag}))


@pytest.mark.parametrize("beats", [False, True])
def test_evaluations_that_were_lost_inside_a_stage_are_made_again(cluster: Cluster, beats: bool) -> None:
    """They stayed missing: the stage went on behind the hole, and nothing asked for them.

    beats: whether the heartbeat notices it, before there is another report.
    """
    calm = submit(cluster, "calm")
    cluster.run(calm)
    expected = curve(cluster, calm)
    study = submit(cluster, "lost")

    def copy() -> None:
        put_back = copy_tables(cluster.records)

        def lose() -> None:
            cluster.settle()
            assert len(cluster.events(e.Evaluated)) == 1
            put_back()
            assert not cluster.events(e.Evaluated)
            if beats:
                cluster.slots["gpu0"].heartbeat.round()

        cluster.at("evaluate", 4, lose)

    cluster.at("evaluate", 2, copy)
    cluster.run(study, rounds=200)
    assert curve(cluster, study) == expected and sorted(expected) == [2, 4, 6, 8]
    assert [each.outcome for each in cluster.events(e.ChainEnded)][-1] == "done"
