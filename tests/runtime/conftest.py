from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from moods import Start

from app.workers.trainer_connection import Deadline
from app.workers.trainer_process import TrainerProcess
from app.workers.warm import TrainerSettings, Warm


@pytest.fixture
def start(warm: Warm) -> Iterator[Start]:
    """A fresh process; all of them end with the test."""
    started: list[TrainerProcess] = []

    def start(using: Warm = warm, **settings: Any) -> TrainerProcess:
        started.append(TrainerProcess.start(using, TrainerSettings(**settings)))
        return started[-1]

    yield start
    for process in started:
        process.close()


@pytest.fixture
def deadline() -> Deadline:
    """Longer than any of these calls takes, on a busy machine too."""
    return Deadline(60.0)
