"""The same slot with real processes that train: crashes, hangs and results."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster
from studies import ALONE, BRANCHES, spec
from toys import switch

from app.domain import events as e
from app.events.database import Database
from app.registry import TrainerSource
from app.service.views import documents
from app.workers.trainer_connection import Deadline
from app.workers.trainer_process import TrainerProcess
from app.workers.warm import Warm

RUNTIME = Path(__file__).parents[1] / "runtime"


@pytest.fixture
def real(sqlite_url: str, tmp_path: Path, warm: Warm) -> Iterator[Cluster]:
    """One slot that trains in processes of its own."""
    database = Database(sqlite_url)
    made = Cluster(database, tmp_path, start=lambda: TrainerProcess.start(warm), silence=60.0, growth_bytes=2**24)
    yield made
    made.close()
    database.dispose()


def test_a_process_gives_the_same_results_as_a_model_here(real: Cluster, database_url: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    here = Cluster(Database(database_url), tmp_path / "other")
    expected = here.values(here.run(here.submit(ALONE)).id)
    here.close()
    done = real.run(real.submit({**BRANCHES, "eval_every": 3}))
    assert real.values(done.id) == expected
    assert done.executed == done.unique == 12


def test_a_crash_costs_restarts_and_then_the_trial(real: Cluster) -> None:
    done = real.run(real.submit(spec(({}, 6), ({"mood": switch("fine", "exit", 4)}, 6))))
    assert [trial.state for trial in done.trials] == ["completed", "failed"]
    failures = real.events(e.StageFailed)
    assert [failure.kind for failure in failures] == ["crash"] * 3
    assert "exit code 7" in failures[0].error


class UntilItHangs(Deadline):
    """However long everything before that takes. journal: where the trainer says so."""

    def __init__(self, floor: float, journal: Path) -> None:
        super().__init__(floor)
        self._journal = journal

    @property
    def seconds(self) -> float:
        return 0.0 if self._journal.exists() and "done" in self._journal.read_text() else self.floor


def test_a_hanging_step_is_ended_and_its_stack_reported(
    real: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "journal"
    monkeypatch.setattr("app.workers.slot.trainer_host.Deadline", lambda floor: UntilItHangs(floor, journal))
    real.sources["moody"] = TrainerSource(str(RUNTIME / "moody.py"), "1")
    hangs = spec(({"mood": switch("fine", "hang", 2)}, 6), trainer_args={"journal": str(journal)})
    done = real.run(real.submit({**hangs, "trainer": "moody", "metric": "total", "max_restarts": 0}))
    assert [trial.state for trial in done.trials] == ["failed"]
    [failure] = real.events(e.StageFailed)
    assert (failure.kind, failure.step) == ("hang", 2)
    assert "in hang\n" in failure.error


@pytest.mark.slow
def test_leaks_of_a_trial_end_with_its_process(real: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    sound = real.run(real.submit(spec(*[({"lr": 0.1 * trial}, 2) for trial in range(6)])))
    assert real.processes["gpu0"] == 1
    done = real.run(real.submit(spec(*[({"lr": 0.1 * trial, "mood": "leak"}, 2) for trial in range(6)])))
    assert [trial.state for trial in done.trials] == ["completed"] * 6
    assert done.executed == done.unique == 12
    assert real.values(done.id) == real.values(sound.id)
    assert real.processes["gpu0"] == 1, "all are forks of one template"
    assert "MiB since its first stages: it is replaced" not in caplog.text


def test_the_output_of_a_trial_is_in_its_log(real: Cluster) -> None:
    study = real.submit(spec(({"mood": "chatty"}, 3)))
    real.run(study)
    text = (real.folder / "logs" / study / "0.log").read_text()
    assert text.index("--- stage of node") < text.index("step 0 says hello")
    assert "step 2 says hello" in text


def test_a_result_names_its_nondeterministic_operations(real: Cluster) -> None:
    real.sources["scattering"] = TrainerSource(str(RUNTIME / "test_determinism.py"), "1")
    done = real.run(real.submit({**spec(({}, 2), ({}, 4)), "trainer": "scattering", "determinism": "warn"}))
    assert [trial.state for trial in done.trials] == ["completed", "completed"]
    told = documents.study(real.plan, done.id, now=0.0)["not_exact"]
    assert told == ["2 stages used put_, which has no deterministic form"]


CYCLE = """
import itertools, math
from stagetree import Trainer
SCALES = itertools.cycle([0.2, 0.7, 1.3])
class Cycling(Trainer):
    name = "cycling"
    def __init__(self, *, seed, device):
        self.w, self.lr = 0.1, 0.0
        print("built with seed", seed)
    def setup(self, hp): self.lr = hp.get("lr", self.lr)
    def train(self): self.w = math.sin(2.7 * self.w + self.lr * next(SCALES))
    def evaluate(self): return {"score": self.w}
    def state_dict(self): return {"w": self.w}
    def load_state_dict(self, state): self.w = state["w"]
"""


def cycling_score(lr: float, steps: int) -> float:
    w, scales = 0.1, itertools.cycle([0.2, 0.7, 1.3])
    for _ in range(steps):
        w = math.sin(2.7 * w + lr * next(scales))
    return w


def test_nothing_of_another_trial_is_left_in_a_process(real: Cluster, tmp_path: Path) -> None:
    """An iterator at the top of the file carried over from trial to trial, and no look at the process knew it."""
    (tmp_path / "cycling.py").write_text(CYCLE)
    real.sources["cycling"] = TrainerSource(str(tmp_path / "cycling.py"), "1")
    study = real.submit({**spec(*(({"lr": lr}, 5) for lr in (0.1, 0.2, 0.3))), "trainer": "cycling"})
    done = real.run(study)
    assert real.values(done.id) == [("completed", {"score": cycling_score(lr, 5)}) for lr in (0.1, 0.2, 0.3)]
    assert real.processes["gpu0"] == 1, "all are forks of one template"
    assert not real.plan.shares_processes(done)
    for trial in range(3):
        log = (real.folder / "logs" / study / f"{trial}.log").read_text()
        assert log.count("built with seed 0") == 1


def test_a_trainer_that_leaves_a_file_open_has_a_process_for_each_trial(
    real: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.workers.slot.trainer_host.LEAST_FREE_BYTES", 2**60)  # none is prepared for a next chain
    held = "self.data = open(__file__)\n        print("
    (tmp_path / "cycling.py").write_text(CYCLE.replace("print(", held))
    real.sources["cycling"] = TrainerSource(str(tmp_path / "cycling.py"), "1")
    done = real.run(real.submit({**spec(*(({"lr": lr}, 5) for lr in (0.1, 0.2, 0.3))), "trainer": "cycling"}))
    assert real.values(done.id) == [("completed", {"score": cycling_score(lr, 5)}) for lr in (0.1, 0.2, 0.3)]
    assert real.processes["gpu0"] == 3
    said = [message for message in caplog.messages if "process of its own" in message]
    assert said == [
        f"each chain of trainer 'cycling' builds it in a process of its own: it has opened {tmp_path}/cycling.py"
    ]


BUILT = """
import json, os, pathlib, threading, time
from stagetree import Trainer

class Threaded(Trainer):
    name = "threaded"
    def __init__(self, *, seed, device, journal):
        self.journal, self.total = pathlib.Path(journal), 0.0
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        self.note("built")
        print("built by", os.getpid())
    def note(self, what):
        with self.journal.open("a") as file:
            file.write(json.dumps([what, os.getpid(), time.monotonic()]) + "\\n")
    def setup(self, hp):
        self.rate = hp["lr"]
    def train(self):
        time.sleep(0.05)
        self.total += self.rate
        self.note("trained")
    def evaluate(self):
        return {"total": self.total}
    def state_dict(self):
        return {"total": self.total}
    def load_state_dict(self, state):
        self.total = state["total"]
"""


def test_the_process_for_the_next_chain_is_built_while_one_trains(
    real: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a trainer can have no template; from the third chain on, since the first tells how much memory it takes."""
    monkeypatch.setattr("app.workers.slot.trainer_host.LEAST_FREE_BYTES", 2**20)
    path, journal = tmp_path / "threaded.py", tmp_path / "journal"
    path.write_text(BUILT)
    real.sources["threaded"] = TrainerSource(str(path), "1")
    trials = [({"lr": float(rate)}, 20) for rate in range(1, 6)]
    study = spec(*trials, trainer_args={"journal": str(journal)})
    done = real.run(real.submit({**study, "trainer": "threaded", "metric": "total"}))
    assert [real.values(done.id)[number] for number in range(5)]
    notes = [json.loads(line) for line in journal.read_text().splitlines()]
    first_step, last_step = {}, {}
    for what, pid, at in notes:
        if what == "trained":
            first_step.setdefault(pid, at)
            last_step[pid] = at
    assert len(first_step) == 5, "each chain has a process of its own"
    built = {pid: at for what, pid, at in notes if what == "built"}
    order = sorted(first_step, key=first_step.__getitem__)
    is_ahead = [built[later] < last_step[before] for before, later in itertools.pairwise(order)]
    assert is_ahead == [False, True, True, True]
