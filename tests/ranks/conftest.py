from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench import Bench

from app.workers.trainer_group import TrainerGroup
from app.workers.trainer_process import TrainerProcess
from app.workers.warm import Warm

Start = Callable[..., TrainerProcess]


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """An interpreter that has imported the modules of these trainers, so that no rank has to."""
    warm = Warm(files=[str(Path(__file__).parent / "in_shards.py")])
    yield warm
    warm.close()


@pytest.fixture(scope="module")
def bench(warm: Warm) -> Iterator[Bench]:
    made = Bench(warm)
    yield made
    made.close()


@pytest.fixture
def start(warm: Warm) -> Iterator[Start]:
    """Start a number of ranks; one is a single process. All of them end with the test."""
    started: list[TrainerProcess] = []

    def start(ranks: int, **settings: Any) -> TrainerProcess:
        if ranks == 1:
            started.append(TrainerProcess.start(warm, **settings))
        else:
            started.append(TrainerGroup.start(warm, ranks=ranks, **settings))
        return started[-1]

    yield start
    for process in started:
        process.close()
