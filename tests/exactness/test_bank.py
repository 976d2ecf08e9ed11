"""No trainer of the bank that is wrong in some way is wrong in silence, and none that is right is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from alone import Alone
from bank import RIGHT, WRONG, grid, hold, sources, trainers
from cluster import Cluster

from app.events.database import Database
from app.workers.trainer_process import TrainerProcess
from app.workers.warm import Warm

WRONG_ONES, RIGHT_ONES = dict(trainers(WRONG)), dict(trainers(RIGHT))


@pytest.fixture
def naive(sqlite_url: str, tmp_path: Path, warm: Warm) -> Iterator[Cluster]:
    """Two slots that train in processes of their own, where nothing is proven."""
    database = Database(sqlite_url)
    made = Cluster(database, tmp_path, slots=2, start=lambda: TrainerProcess.start(warm), silence=60.0)
    made.sources = sources()
    yield made
    made.close()
    database.dispose()


def test_the_bank_is_as_large_as_it_should_be() -> None:
    assert len(WRONG_ONES) >= 42 and len(RIGHT_ONES) >= 20


def test_every_wrong_trainer_shows_wrong_values_where_nothing_is_proven(naive: Cluster, alone: Alone) -> None:
    """Else it would prove nothing that they are caught."""
    harmless = []
    for name in WRONG_ONES:
        study = naive.run(naive.submit(grid(name)))
        held = hold(naive, study, alone)
        print(name, held.state, held.errors, {k: v[:1] for k, v in held.other.items()})
        if not held.other:
            harmless.append(name)
    assert harmless == []


def test_right_trainers_show_right_values_where_nothing_is_proven(naive: Cluster, alone: Alone) -> None:
    wrong = {}
    for name in RIGHT_ONES:
        study = naive.run(naive.submit(grid(name)))
        held = hold(naive, study, alone)
        if held.other or held.errors:
            wrong[name] = held
    assert wrong == {}
