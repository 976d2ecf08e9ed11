"""Promotions worked out by hand, and against Algorithm 2 (Li et al. 2020) written down a second time, naively."""

from __future__ import annotations

import math
from hashlib import sha256
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.domain.commands import Extend
from app.search.tuners.base import NewTrial
from tests.tuners.worlds import Table

THREE = {"kind": "asha", "num_trials": 9, "min_steps": 1, "max_steps": 9, "reduction_factor": 3}
INF = math.inf


def next_action(table: Table) -> tuple[str, int] | None:
    """The next granted action: ("promote", trial) or ("start", trial)."""
    return None if table.ask() is None else table.log[-1][:2]


# -------------------------------------------------------------------------------------------------- promotions by hand


def test_top_third_in_full() -> None:
    """The same, to the end of the story: which trial is promoted after each result, and why."""
    table = Table(THREE)
    for _ in range(9):
        table.ask()
    expected = {
        1: (0.9, []),  # of 1
        0: (0.5, []),  # of 2
        2: (0.7, [0]),  # of 3, cut 1: 0
        3: (0.4, [3]),  # of 4, cut 1: 3 is best now, and goes up beside 0, wrongly promoted
        4: (0.45, []),  # of 5, cut 1: 3 went up already
        5: (0.8, [4]),  # of 6, cut 2: 3, 4
        6: (0.6, []),  # of 7
        7: (0.1, [7]),  # of 8, cut 2: 7, 3
        8: (0.2, [8]),  # of 9, cut 3: 7, 8, 3
    }
    for trial, (loss, promoted) in expected.items():
        table.result(trial, loss)
        assert [action.trial for action in table.ask_all() if isinstance(action, Extend)] == promoted
    assert [table.steps[trial] for trial in (0, 3, 4, 7, 8)] == [3] * 5
    for trial, loss in ((0, 0.3), (3, 0.35)):
        table.result(trial, loss)
        assert table.ask() is None
    table.result(7, 0.05)  # the third at rung 1: the best of them goes to the top
    action = table.ask()
    assert action == Extend(trial=7, steps=9, reason={"rung": 2, "rank": 1, "cut": 1, "of": 3, "loss": 0.05})
    table.result(7, 0.04)
    assert table.ask() is None  # no promotion from the top rung


def test_higher_rungs_come_first_and_a_wait_can_end_later() -> None:
    """eta 2: trial 1 is passed over, and goes up when more results make the top half wider."""
    table = Table(THREE | {"reduction_factor": 2, "max_steps": 4})
    for _ in range(9):
        table.ask()
    table.result(0, 0.1)
    table.result(1, 0.2)
    assert next_action(table) == ("promote", 0)
    assert next_action(table) is None
    table.result(2, 0.9)
    table.result(3, 0.05)
    assert next_action(table) == ("promote", 3)
    table.result(0, 0.1)
    table.result(3, 0.2)
    table.result(4, 0.8)
    table.result(5, 0.7)
    assert next_action(table) == ("promote", 0)  # rung 1 to 2 before anything below
    assert table.steps[0] == 4
    assert next_action(table) == ("promote", 1)
    assert next_action(table) is None


def test_a_cancelled_trial_does_not_count_unless_it_went_up() -> None:
    table = Table(THREE)
    for _ in range(9):
        table.ask()
    table.result(0, 0.1)
    table.result(1, 0.2)
    table.cancel(0)  # waiting at its rung
    table.cancel(8)  # on its way
    table.result(2, 0.3)
    assert next_action(table) is None  # two are left
    table.result(3, 0.4)
    assert next_action(table) == ("promote", 1)
    table.cancel(1)  # went up: it keeps its place in the cut below
    table.result(4, 0.5)
    assert next_action(table) is None


def test_rungs_are_endless_without_max_steps() -> None:
    table = Table({"kind": "asha", "num_trials": 8, "min_steps": 1, "reduction_factor": 2})
    for _ in range(8):
        table.ask()
    running = list(range(8))
    while running:
        for trial in running:
            table.result(trial, float(trial))
        running = [action.trial for action in table.ask_all() if isinstance(action, Extend)]
    assert max(table.steps.values()) == 8


# ------------------------------------------------------------------------------------------- Algorithm 2, a second time


class Algorithm2:
    """ASHA as on page 4 of the paper: sorted from scratch at each call, with plain lists and no thought of speed.

    Ties, failures and the number of configurations as stated in the guide: equal results are in the order of a hash
    with the seed, or of their trials without one; a failure is the worst of its rung and never promoted; and after `n`
    configurations no new one is drawn.
    """

    def __init__(self, r: int, R: int, eta: int, n: int, seed: int | None) -> None:
        self.steps = [r]
        while self.steps[-1] < R:
            self.steps.append(min(R, self.steps[-1] * eta))
        self.eta, self.n, self.drawn, self.seed = eta, n, 0, seed
        self.rungs: list[list[tuple[float, int]]] = [[] for _ in self.steps]
        self.promoted: list[list[int]] = [[] for _ in self.steps]

    def get_job(self) -> tuple[int, int] | None:
        """(trial, steps) to run next."""
        for k in range(len(self.steps) - 2, -1, -1):
            candidates = self.top_k(k, len(self.rungs[k]) // self.eta)
            promotable = [t for loss, t in candidates if t not in self.promoted[k] and loss < INF]
            if len(promotable) > 0:
                self.promoted[k].append(promotable[0])
                return promotable[0], self.steps[k + 1]
        if self.drawn == self.n:
            return None
        self.drawn += 1
        return self.drawn - 1, self.steps[0]

    def top_k(self, k: int, count: int) -> list[tuple[float, int]]:
        def draw(t: int) -> bytes:
            return b"" if self.seed is None else sha256(f"{self.seed}/ties/{k}/{t}".encode()).digest()

        return sorted(self.rungs[k], key=lambda each: (each[0], draw(each[1]), each[1]))[:count]

    def record_result(self, trial: int, steps: int, loss: float) -> None:
        self.rungs[self.steps.index(steps)].append((loss, trial))


@st.composite
def settings_of_asha(draw: st.DrawFn) -> dict[str, Any]:
    r = draw(st.integers(1, 3))
    return {
        "min_steps": r,
        "max_steps": draw(st.integers(r, 40)),
        "reduction_factor": draw(st.integers(2, 5)),
        "num_trials": draw(st.integers(1, 60)),
    }


@given(
    settings_of_asha(),
    st.none() | st.integers(0, 9),
    st.integers(1, 12),
    st.randoms(use_true_random=False),
    st.integers(1, 9),
)
def test_promotions_are_those_of_algorithm_2(
    given_: dict[str, Any], seed: int | None, workers: int, rng: Any, values: int
) -> None:
    """Any number of workers, jobs that end in any order, few different losses, some failures."""
    paper = Algorithm2(given_["min_steps"], given_["max_steps"], given_["reduction_factor"], given_["num_trials"], seed)
    ours = Table({"kind": "asha", **given_} | ({} if seed is None else {"ties": "seed", "sampling_seed": seed}))
    running: list[tuple[int, int]] = []
    while True:
        while len(running) < workers and (job := paper.get_job()):
            assert ours.ask() is not None and ours.log[-1][1:] == job
            running.append(job)
        if len(running) < workers:
            assert ours.ask() is None
        if not running:
            return
        trial, steps = running.pop(rng.randrange(len(running)))
        loss = INF if rng.random() < 0.1 else rng.randrange(values) / 8
        paper.record_result(trial, steps, loss)
        if loss == INF:
            ours.fail(trial)
        else:
            ours.result(trial, loss)


@given(st.permutations(range(9)), st.lists(st.sampled_from([0.1, 0.2, 0.3, INF]), min_size=9, max_size=9))
def test_sha_does_not_mind_the_order_within_a_rung(order: list[int], losses: list[float]) -> None:
    def action_log(trials: Any) -> list[tuple[str, int, int]]:
        table = Table(THREE | {"kind": "sha"})
        table.ask_all()
        for trial in trials:
            table.fail(trial) if losses[trial] == INF else table.result(trial, losses[trial])
        table.ask_all()
        return table.log

    assert action_log(order) == action_log(range(9))


def test_sha_waits_for_the_whole_rung() -> None:
    table = Table(THREE | {"kind": "sha"})
    assert all(isinstance(action, NewTrial) for action in table.ask_all())
    for trial in range(8):
        table.result(trial, trial / 10)
        assert table.ask() is None
    table.cancel(8)
    assert [action.trial for action in table.ask_all() if isinstance(action, Extend)] == [0, 1, 2]
    for trial in (2, 1):
        table.result(trial, 0.5)
    assert table.ask() is None
    table.fail(0)
    action = table.ask()
    assert action == Extend(trial=1, steps=9, reason={"rung": 2, "rank": 1, "cut": 1, "of": 3, "loss": 0.5})
