"""No script that is wrong in some way is wrong in silence, and none that is right has a mark."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from alone import Alone
from bank import STUDIES, Held, compare_study
from cluster import Cluster
from scripts import SCRIPTS, Script

from app.events.database import Database
from app.registry import Catalogue
from app.workers.trainer_process import TrainerProcess
from app.workers.warm import Warm


@pytest.fixture
def cluster(database: Database, tmp_path: Path, warm: Warm) -> Iterator[Cluster]:
    """Two slots that train in processes of their own, and compare."""
    start = partial(TrainerProcess.start, warm)
    made = Cluster(database, tmp_path, start=start, slots=2, silence=60.0, proofs=True)
    yield made
    made.close()


def compare_script(cluster: Cluster, script: Script, alone: Alone, folder: Path) -> Held:
    file = folder / "script.py"
    file.write_text(script.source)
    cluster.sources = Catalogue([str(file)]).describe()
    study = cluster.run(cluster.submit(STUDIES[script.shows_in](script.name)), rounds=400)
    return compare_study(cluster.plan, study, alone, str(file))


@pytest.mark.slow
@pytest.mark.parametrize("script", [each for each in SCRIPTS if not each.is_right], ids=lambda each: each.name)
def test_every_wrong_script_is_marked(cluster: Cluster, script: Script, alone: Alone, tmp_path: Path) -> None:
    found = compare_script(cluster, script, alone, tmp_path)
    assert found.state == "completed" and not found.silent_errors, found
    assert found.isolated or any(found.marks.values()), "else it shows nothing"
    assert not (found.isolated and found.other), found


@pytest.mark.slow
@pytest.mark.parametrize("script", [each for each in SCRIPTS if each.is_right], ids=lambda each: each.name)
def test_no_right_script_has_a_mark(cluster: Cluster, script: Script, alone: Alone, tmp_path: Path) -> None:
    found = compare_script(cluster, script, alone, tmp_path)
    assert (found.state, found.isolated, found.other) == ("completed", "", {})
    assert not any(found.marks.values()) and found.verdict in ("checked", "verified"), found
