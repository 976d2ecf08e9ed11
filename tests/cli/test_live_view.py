"""The view of a running study: whole lines on any terminal, and plain lines elsewhere."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from stacks import Json

from app.api import examples
from app.cli import watch
from app.cli.live_view import frame
from app.cli.store import Store
from app.cli.watch import Show, Standstill, choose_display, headline, lines
from app.domain import events as e
from app.events.database import Database
from app.service.views import documents
from stagetree.client import ProblemError, Unreachable
from stagetree.time_left import TimeLeft
from tests.plans import Story

RUNGS = [{"bracket": 0, "rung": 0, "steps": 2, "entered": 23, "arrived": 21, "failed": 2, "promoted": 7}]
LAST = {"kind": "stop", "trial": 19, "steps": 6, "reason": {"rung": 1, "rank": 5, "of": 9, "cut": 3}}


def study(slots: int = 4, **fields: Any) -> Json:
    """A study under way that has everything there is to show."""
    running = [examples.UNDER_WAY | {"slot": f"cpu{number}"} for number in range(slots)]
    shown = examples.PROGRESS | {"running": running, "rungs": RUNGS, "last": LAST}
    counts = examples.STUDY["counts"] | {"failed": 2}
    long = {"lr": {"family": "wsd", "peak": 0.1, "warmup": 2, "stable_until": 10, "decay": 5}} | examples.HP
    best = examples.STUDY["best"] | {"hp": long}
    return examples.STUDY | {"progress": shown, "counts": counts, "best": best, "waits": ""} | fields


def render_view(study: Json, width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    console.print(frame(study, height, width))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("width", "height"), [(40, 12), (80, 24), (100, 8), (160, 50), (200, 60)])
def test_the_view_fits_the_terminal(width: int, height: int) -> None:
    shown = render_view(study(slots=16), width, height)
    assert max(map(len, shown)) <= width
    assert len(shown) <= max(height, 10)


def test_the_view_has_the_essential_lines() -> None:
    text = "\n".join(render_view(study(), 80, 24))
    parts = ("about 0:02 left", "1/4", "2 failed", "2: 21/23", "36% by sharing", "trial 3 @ 40", "rank 5 of 9")
    missing = [part for part in (*parts, "cpu3", "trial 3 and 1 more", "bs 64  lr 0.1") if part not in text]
    assert not missing


def test_a_verification_is_distinguished_from_training() -> None:
    verified = examples.UNDER_WAY | {"proof": "whole"}
    of_another = verified | {"trials": [], "trial_count": 0}
    text = "\n".join(render_view(study(progress=examples.PROGRESS | {"running": [verified, of_another]}), 120, 24))
    assert "verifies 2 trials" in text and "verification" in text and "another study's" not in text


def test_only_a_long_configuration_is_cut_at_80_columns() -> None:
    """Of 40 trials under ASHA, with failures, rungs and steps that were repeated."""
    cost = examples.STUDY["cost"] | {"saved_by_sharing": 0.54, "saved_by_stopping": 0.98, "repeated": 12, "retried": 9}
    trials = {"done": 26, "resting": 19, "expected": 40}
    progress = study()["progress"] | {"trials": trials, "steps": {"done": 133, "expected": 260}}
    counts = {"failed": 3, "running": 4, "waiting": 10, "completed": 23, "pruned": 0, "cancelled": 0}
    shown = render_view(study(tuner="asha", cost=cost, counts=counts, progress=progress), 80, 24)
    assert shown[1].endswith("26/40  3 failed  4 running  10 waiting  19 at rungs")
    assert shown[2].rstrip().endswith("133/about 260 unique  51%")
    said = "saved   54% by sharing, 98% by early stopping   12 repeated, 9 retried"
    assert shown[4].rstrip() == said
    assert [line for line in shown if "…" in line] == [shown[5]] and shown[5].startswith("best    val_accuracy 0.9889")


def test_a_narrow_terminal_has_words_instead_of_bars() -> None:
    shown = render_view(study(), 40, 12)
    assert shown[1] == f"{'trials  1/4  2 failed  2 running  1 wait':.39}…"
    assert "cpu3" in shown[-1]  # and lines for every slot, as far as there is room


def test_the_view_before_the_first_request() -> None:
    nothing = examples.PROGRESS | {"steps": {"done": 0, "expected": 0}, "running": [], "seconds_left": None}
    assert "none asked for yet" in render_view(study(progress=nothing), 80, 24)[2]


def test_trials_that_may_be_promoted_count_as_tried() -> None:
    """It said 9/12 trials, and then 8/12, when ASHA sent one on."""
    trials = {"done": 23, "resting": 9, "expected": 40}
    said = headline(study(progress=study()["progress"] | {"trials": trials}))
    assert "23/40 trials tried, 9 at rungs" in said
    assert "1/4 trials" in headline(study()) and "tried" not in headline(study())


def test_slots_beyond_the_screen_are_counted() -> None:
    assert "more slots" in render_view(study(slots=40), 80, 24)[-1]


def test_control_characters_in_names_are_escaped() -> None:
    wicked = study(metric="\x1b[2Jacc\udc80", study="x-1")
    assert "\x1b" not in "\n".join(render_view(wicked, 80, 24))
    assert "\x1b" not in headline(wicked)


@pytest.mark.parametrize(
    ("environment", "options", "shown"),
    [
        ({"TERM": "xterm"}, (False, False), Show.live),
        ({"TERM": "dumb"}, (False, False), Show.plain),
        ({"TERM": "xterm", "CI": "true"}, (False, False), Show.plain),
        ({"TERM": "xterm"}, (True, False), Show.plain),
        ({"TERM": "xterm"}, (False, True), Show.quiet),
    ],
)
def test_the_kind_of_view_depends_on_the_output(
    environment: dict[str, str], options: tuple[bool, bool], shown: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "CI"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert choose_display(*options) is shown


def test_lines_are_printed_less_often_over_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A study of ten hours printed 7,200 lines."""
    now = iter(range(0, 10**6, 1))
    monkeypatch.setattr(watch.time, "monotonic", lambda: float(next(now)))
    looks = (study(progress=examples.PROGRESS | {"steps": {"done": n, "expected": 36_000}}) for n in range(36_000))
    lines(looks)
    said = capsys.readouterr().err.splitlines()
    assert 100 < len(said) < 250
    assert "0/36000 unique steps" in said[0]


def test_the_steps_of_a_running_study_are_labelled() -> None:
    """Beside a preview's 63 and 46 they were 49, and then others, without a word."""
    assert " · 82/about 104 unique steps · " in headline(study())
    assert " · 82/104 unique steps · " in headline(study(state="completed"))
    assert " · 82/104 unique steps · " in headline(study(progress=study()["progress"] | {"rungs": []}))
    none_yet = {"counts": dict.fromkeys(study()["counts"], 0), "progress": study()["progress"] | {"rungs": []}}
    assert " · 82/about 104 unique steps · " in headline(study(**none_yet)), "no trial has begun: it is a forecast"


def test_a_terminal_without_a_middle_dot_gets_another_separator(monkeypatch: pytest.MonkeyPatch) -> None:
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stderr", ascii_only)
    headline(study()).encode("ascii")


class Restarted:
    """A server that is away for a while."""

    def __init__(self, away: int) -> None:
        self.away = away

    def study(self, study: str, trials: bool = True) -> Json:
        self.away -= 1
        if self.away >= 0:
            raise Unreachable("http://here", "it is being started again")
        return {"study": study, "state": "completed", "progress": {"seconds_left": None}}


def test_the_view_waits_for_a_restarting_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch.time, "sleep", lambda seconds: None)
    server: Any = Restarted(away=5)
    assert watch.follow(server, "x", Show.quiet)["state"] == "completed"


def test_a_server_that_stays_away_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(watch, "AWAY_SECONDS", 0.0)
    server: Any = Restarted(away=10**6)
    with pytest.raises(Unreachable):
        watch.follow(server, "x", Show.quiet)


class Stopping:
    """A study that ends while a slot trains for it, as its views show it: the slot stops after two more looks."""

    def __init__(self, *, is_over: bool = False) -> None:
        self.story, self.looks = Story(), 0
        self.name = self.story.submit(({"lr": 0.1}, 8))
        self.chain = self.story.assign((self.story.path(self.name)[0], 0, 8))
        if is_over:
            self._complete()

    def study(self, study: str, trials: bool = True) -> Json:
        self.looks += 1
        if self.looks == 2 and self.story.plan.studies[self.name].state == "running":
            self._complete()
        if self.looks == 4:
            self.story.happen(e.ChainEnded(chain=self.chain.id, outcome="stopped", steps=3, seconds=2.5))
        return documents.study(self.story.plan, self.name, now=9.0, with_trials=trials).to_json()

    def _complete(self) -> None:
        self.story.happen(e.StudyCompleted(study=self.name, at=1.0))


def test_the_slot_time_that_is_printed_is_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proof that stopped with its study was charged a moment later: the page said more than the result."""
    monkeypatch.setattr(watch.time, "sleep", lambda seconds: None)
    server: Any = Stopping()
    assert watch.follow(server, server.name, Show.quiet)["gpu_seconds"] == 2.5
    over: Any = Stopping(is_over=True)
    watch.follow(over, over.name, Show.quiet)
    assert over.looks == 2, "a completed study needs no heartbeat of its slot, which may be gone"


FULL = "The database sqlite:////home/me/project/.stagetree/stagetree.db cannot be used: database or disk is full."


class NotWell:
    """A server whose disk is full."""

    asked = 0

    def ready(self) -> None:
        self.asked += 1
        raise ProblemError(503, "Service Unavailable", f"Not ready: database: {FULL}")


def test_the_time_left_does_not_jump_with_the_busy_slots() -> None:
    """It said 1:51, 0:54, nothing, 1:55 and 0:55, as one or two slots were between stages."""
    now = [0.0]
    left = TimeLeft(clock=lambda: now[0])
    shown = []
    for second in range(60):
        now[0] = float(second)
        shown.append(left.next([120.0 - second, 60.0 - second / 2, None][second % 3]))
    assert shown[0] == 120.0 and None not in shown
    drops = [before - after for before, after in itertools.pairwise(filter(None, shown))]
    assert max(map(abs, drops)) < 5, "and no line differs much from the one before"
    assert TimeLeft().next(None) is None


def test_a_waiting_study_shows_the_reason() -> None:
    """The view stood still, and only the logs of the slots told why the study did."""
    now, server = [0.0], NotWell()
    standstill = Standstill(server, clock=lambda: now[0])  # type: ignore[arg-type]
    on_its_way = study()
    for seconds, is_said in ((0.0, False), (9.0, False), (2.0, True), (1.0, True)):
        now[0] += seconds
        assert bool(standstill.reason(on_its_way)) == is_said
    assert server.asked == 1, "not at each look"
    moved = study(progress=on_its_way["progress"] | {"steps": {"done": 83, "expected": 104}})
    assert standstill.reason(moved) == ""


def test_the_reason_for_waiting_is_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    waits = study(waits=f"Not ready: database: {FULL}")
    assert "database or disk is full." in " ".join(" ".join(render_view(waits, 80, 24)).split())
    lines(iter([waits, waits, study(), waits]))
    assert capsys.readouterr().err.count(f"stands still: Not ready: database: {FULL}") == 2


def test_the_note_of_a_slot_is_shown_without_a_request(capsys: pytest.CaptureFixture[str]) -> None:
    text = "slot gpu0: waits for the store: checkpoint a/b is not there"
    server = NotWell()
    standstill = Standstill(server, clock=lambda: 0.0)  # type: ignore[arg-type]
    held_up = study(waits_for=[text])
    assert standstill.reason(held_up) == text and standstill.reason(study()) == "" and not server.asked
    lines(iter([study(waits=text)]))
    assert f": {text}\n" in capsys.readouterr().err
    assert text in " ".join(" ".join(render_view(study(waits=text), 80, 24)).split())


def test_a_store_without_a_server_is_not_asked(tmp_path: Path) -> None:
    Database(f"sqlite:///{tmp_path}/stagetree.db").create()
    with Store(tmp_path) as store:
        now = iter([0.0, 0.0, 11.0])
        standstill = Standstill(store, clock=lambda: next(now))
        assert [standstill.reason(study()) for _ in range(2)] == ["", ""]
