"""How often a command looks at the study that it follows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from app.api.examples import STUDY
from app.cli import watch

Json = dict[str, Any]


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now, self.looks = 0.0, 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("end", "most_late", "most_looks"), [(0.3, 0.1, 5), (6.5, 0.4, 55), (60.0, 2.0, 100)])
def test_an_early_end_is_noticed_soon(
    end: float, most_late: float, most_looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hours are expected, and a target ends the study. A run of six seconds saw its end up to two seconds later."""
    clock = Clock()

    def answer(study: str, trials: bool = True) -> Json:
        clock.looks += 1
        state = "completed" if clock.now >= end else "running"
        progress = STUDY["progress"] | {"running": [], "seconds_left": 9999.0}
        return STUDY | {"state": state, "progress": progress}

    monkeypatch.setattr(watch, "time", clock)
    client: Any = SimpleNamespace(study=answer)
    assert watch.follow(client, STUDY["study"], watch.Show.quiet)["state"] == "completed"
    assert end <= clock.now <= end + most_late + 1e-9
    assert clock.looks <= most_looks
