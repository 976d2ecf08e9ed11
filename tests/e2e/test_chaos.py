"""Rounds of faults on real processes, each drawn from a seed: any combination leaves the results unchanged.

`STAGETREE_TEST_CHAOS=0:200 pytest tests/e2e/test_chaos.py` plays as many rounds of each kind as it has seeds.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from uuid import uuid4

import psutil
import pytest
from faults import check, siblings
from round_faults import BREAKS_BACKUPS, FAULTS, lost_commits
from sqlalchemy import Engine
from stacks import PATIENCE, TOYS, Cluster, Json, Service, wait_for
from toys import curves, grid

from app.domain.evolve import fold
from app.domain.search_plan import SearchPlan
from app.embedded.machine import reserve
from app.events.database import Database
from app.events.sql_log import SqlRecords
from stagetree.client import Client
from tests.conftest import drop_database, make_database

SEEDS = range(*map(int, os.environ.get("STAGETREE_TEST_CHAOS", "1:2").split(":")))
ENOUGH = 5 * PATIENCE


@pytest.fixture(scope="module")
def packed_curves(stack: Service) -> list[Json]:
    """What eight packed trials come to when nothing goes wrong."""
    return curves(stack, stack.run(siblings("chaos expected"))["study"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_faults_of_a_round_change_no_result(
    cluster: Cluster, whole: Cluster, expected_curves: list[Json], packed_curves: list[Json], seed: int
) -> None:
    chance = Random(seed)
    is_packed = chance.random() < 0.3
    made = siblings if is_packed else grid
    study = cluster.submit(made(f"chaos {seed}", seconds=chance.choice((0.05, 0.1, 0.2))))
    for _ in range(chance.randint(1, 3)):
        time.sleep(chance.random() * 3)
        print(f"round {seed}:", chance.choice(FAULTS)(cluster, chance))
    check(cluster, study, packed_curves if is_packed else expected_curves)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_study_comes_to_its_results_after_its_last_commits_were_lost(
    cluster: Cluster, expected_curves: list[Json], seed: int
) -> None:
    study = cluster.submit(grid(f"lost commits {seed}", seconds=0.2))
    cluster.wait_for_event(study, "StageCompleted")
    print(lost_commits(cluster, Random(seed)))
    assert cluster.wait(study)["state"] == "completed"
    assert curves(cluster, study) == expected_curves


# ------------------------------------------------------------------------------------------------ a backup


@contextmanager
def restored_cluster(cluster: Cluster, settings: dict[str, str], port: int) -> Iterator[Cluster]:
    """The API, the scheduler and a slot of another installation, with these settings, on the servers of the first."""
    commands = {name: cluster.commands[name] for name in ("gpu0", "scheduler")}
    commands["api"] = [*cluster.commands["api"][:-1], str(port)]
    folder = Path(settings["STAGETREE_CHECKPOINTS"]).parent
    database = Database(settings["STAGETREE_DATABASE_URL"])
    with Client(f"http://127.0.0.1:{port}") as client:
        running = Cluster(client, folder, database, settings, commands, networks={})
        try:
            running.start()
            yield running
        finally:
            running.stop()
            database.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_backup_made_amid_faults_resumes_elsewhere(
    cluster: Cluster,
    whole: Cluster,
    expected_curves: list[Json],
    postgres_programs: str,
    postgres_admin: Engine,
    tmp_path: Path,
    seed: int,
) -> None:
    """It is restored to another database, with its checkpoints in a folder, and comes to the same values there."""
    chance, name = Random(seed), f"stagetree_{uuid4().hex[:12]}"
    study = cluster.submit(grid(f"chaos backup {seed}", seconds=0.2))
    cluster.wait_for_event(study, "CheckpointKept")
    here = {**os.environ, **cluster.settings, "PATH": postgres_programs}
    command = [sys.executable, "-m", "stagetree"]
    made = [*command, "backup", str(tmp_path / "kept"), "--checkpoints"]
    backup = subprocess.Popen(made, env=here, cwd=tmp_path, stdout=subprocess.PIPE, text=True)  # beside no other store
    faults = [each for each in FAULTS if each not in BREAKS_BACKUPS]
    while backup.poll() is None:
        print(f"round {seed}:", chance.choice(faults)(cluster, chance))
    assert backup.wait() == 0 and backup.stdout and "copies of 0" not in backup.stdout.read()
    check(cluster, study, expected_curves)
    settings = {**cluster.settings, "STAGETREE_CHECKPOINTS": str(tmp_path / "checkpoints")}
    settings |= {"STAGETREE_BROKER_URL": cluster.settings["STAGETREE_BROKER_URL"].replace("/0", "/1")}
    settings |= {"STAGETREE_DATABASE_URL": make_database(postgres_admin, name)}
    there, (port, kept) = {**here, **settings}, reserve("127.0.0.1", 0)
    try:
        subprocess.run([*command, "restore", str(tmp_path / "kept")], env=there, cwd=tmp_path, check=True)
        with kept, restored_cluster(cluster, settings, port) as other:
            check(other, study, expected_curves)
            assert other.client.replay(study).identical
    finally:
        drop_database(postgres_admin, name)


# ------------------------------------------------------------------------------------------------ `run`


def results(folder: Path) -> tuple[SearchPlan, list[list[Json]]]:
    """The only plan of a store, and of each of its studies the curve of each trial."""
    database = Database(f"sqlite:///{folder / '.stagetree' / 'stagetree.db'}")
    records = SqlRecords(database)
    with records.read() as rows:
        (stream,) = {row.stream for row in rows.studies.page()}
    plan = fold(each.event for each in records.log.read(stream, limit=100_000))
    database.dispose()
    return plan, [
        [{"state": trial.state.value, "steps": trial.steps, "curve": dict(plan.curve(trial))} for trial in study.trials]
        for study in plan.studies.values()
    ]


def run_of(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "stagetree", "run", "study.json", "--slots", "2", "-q", "--no-check"]
    with (folder / "said").open("ab") as said:
        return subprocess.Popen(
            [*command, "--trainers", TOYS[0]], cwd=folder, stdout=said, stderr=said, start_new_session=True
        )


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> list[Json]:
    """The outcome of an uninterrupted `run`."""
    folder = tmp_path_factory.mktemp("calm")
    (folder / "study.json").write_text(json.dumps(grid("run", seconds=0.02)))
    assert run_of(folder).wait(ENOUGH) == 0
    (found,) = results(folder)[1]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_ended_at_any_moment_resumes(tmp_path: Path, calm: list[Json], seed: int) -> None:
    """With all that it has started, or without; at once, or asked to."""
    chance = Random(seed)
    (tmp_path / "study.json").write_text(json.dumps(grid("run", seconds=0.1)))
    for _ in range(chance.randint(1, 4)):
        run = run_of(tmp_path)
        is_early = chance.random() < 0.3
        if not is_early:
            wait_for("a log", (tmp_path / ".stagetree" / "stagetree.db").exists)
        time.sleep(chance.random() * 12)
        if run.poll() is not None:  # it was faster
            break
        family = psutil.Process(run.pid).children(recursive=True)
        number = chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM))
        print(f"round {seed}: {number.name}, {len(family)} processes below it")
        run.send_signal(number)
        if number == signal.SIGKILL and chance.random() < 0.5:
            for each in family:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
        run.wait(ENOUGH)
        assert not psutil.wait_procs(family, timeout=PATIENCE)[1]
    else:
        run = run_of(tmp_path)
    assert run.wait(ENOUGH) == 0, (tmp_path / "said").read_text(errors="replace")
    plan, found = results(tmp_path)
    assert all(each == calm for each in found)
    assert len(found) <= 2  # if `run` was ended after its study had ended, the next run submits the study once more
    assert not plan.chains
