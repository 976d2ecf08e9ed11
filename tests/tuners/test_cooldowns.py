"""Cooldowns at rungs: against Algorithm 2 with values replaced, by hand, and by the names that their nodes have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import commands as c
from app.domain import results
from app.domain.accounting import cost
from app.domain.checkpoint_needs import required_keys, states_of
from app.domain.commands import Extend, Start
from app.domain.leaderboard import build_leaderboard, state_text
from app.domain.rung_values import cooldown_hp
from app.domain.schedule import path
from app.domain.search_plan import Node, Study, TrialEvent
from app.domain.terms import StudyId
from app.search.replay import replay
from app.search.tuners.base import NewTrial
from app.simulation.preview import preview
from stagetree.advice import advice
from stagetree.sequences import SequenceError, parse
from stagetree.spec import SpecError, StudySpec
from stagetree.spec.tuners.rung_values import CooldownValue
from tests.plans import max_examples
from tests.properties.test_naive_tuners import Decision, Naive, asha, hyperband, sha
from tests.tuners.worlds import STUDY, Table, numbered_events, run_simulator, simulator, spec, unlucky

ASHA = {"kind": "asha", "num_trials": 9, "min_steps": 10, "max_steps": 90, "reduction_factor": 3}
COOLED = ASHA | {"rung_value": {"cooldown": 0.1}}
FLAT = {"lr": [0.1, 0.2, 0.3], "bs": [8, 16, 32]}

# ------------------------------------------------------------------------------------------- the plainest reading


def merge_cooldowns(history: list[TrialEvent]) -> tuple[list[TrialEvent], list[tuple[int, int]]]:
    """What a tuner would have seen had each trial the value of its cooldown; and the cooldowns that are still due.

    Trials are numbered anew, as if there were no cooldowns."""
    numbers, cooldowns, asked = dict[int, int](), dict[int, tuple[int, int, int]](), dict[int, int]()
    story, due, gone = list[TrialEvent](), list[tuple[int, int]](), set[int]()
    for line in history:
        if "cooldown_of" in line.reason and line.kind == "start":
            trunk = line.reason["cooldown_of"]
            cooldowns[line.trial] = trunk, line.reason["at"], line.steps
            due.remove((trunk, line.reason["at"]))
        elif line.trial in cooldowns:
            trunk, at, end = cooldowns[line.trial]
            is_told = line.kind in ("fail", "cancel") or (line.kind == "result" and line.steps == end)
            if is_told and trunk not in gone:
                story.append(replace(line, trial=numbers[trunk], steps=at))
                gone |= set() if line.kind == "result" else {trunk}
        elif line.kind == "result":
            due.append((line.trial, asked[line.trial]))
        else:
            numbers.setdefault(line.trial, len(numbers))
            asked[line.trial] = line.steps
            story.append(replace(line, trial=numbers[line.trial]))
            if line.kind in ("fail", "cancel", "stop"):
                gone.add(line.trial)
                due = [each for each in due if each[0] != line.trial]
    return story, due


def expected_decision(
    naive: Naive, history: list[TrialEvent], tuner: dict[str, Any], starts_first: bool
) -> Decision | None:
    story, due = merge_cooldowns(history)
    wanted = naive(story, tuner)
    if due and not (starts_first and wanted is not None and wanted[0] == "start"):
        return ("start", -1, due[0][1] + tuner["rung_value"]["cooldown"])
    if wanted is None or wanted[0] == "start":
        return wanted
    trunks = [line.trial for line in history if line.kind == "start" and "cooldown_of" not in line.reason]
    return (wanted[0], trunks[wanted[1]], wanted[2])


CASES: dict[str, tuple[dict[str, Any], Naive, bool]] = {
    "asha": ({"kind": "asha", "num_trials": 20, "min_steps": 2, "max_steps": 20, "reduction_factor": 3}, asha, False),
    "sha": ({"kind": "sha", "num_trials": 12, "min_steps": 1, "max_steps": 8, "reduction_factor": 2}, sha, True),
    "hyperband": (
        {"kind": "hyperband", "min_steps": 1, "max_steps": 9, "reduction_factor": 3, "loops": 2},
        hyperband,
        True,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@max_examples(6)
@given(seed=st.integers(0, 10**6), slots=st.sampled_from([1, 2, 5, 40]))
def test_every_decision_is_the_papers_with_the_values_of_cooldowns(case: str, seed: int, slots: int) -> None:
    """With ties, failures, lost workers, and trials and cooldowns that users cancel."""
    tuner, naive, starts_first = CASES[case]
    tuner = tuner | {"rung_value": {"cooldown": 3}}
    study = unlucky(tuner, seed, slots)
    for number, line in enumerate(study.history):
        if line.kind in ("start", "promote"):
            trial = -1 if line.kind == "start" else line.trial
            before = study.history[:number]
            assert expected_decision(naive, before, tuner, starts_first) == (str(line.kind), trial, line.steps), number
    if study.state == "completed":
        assert expected_decision(naive, study.history, tuner, starts_first) is None


# ------------------------------------------------------------------------------------------------------------ by hand


def test_a_trial_is_ranked_by_its_cooldown_and_resumes_before_it() -> None:
    table = Table(COOLED)
    for _ in range(3):
        assert isinstance(table.ask(), NewTrial)
    for trial, loss in enumerate((0.1, 0.5, 0.6)):  # by these, trial 0 would be promoted
        table.result(trial, loss)
    for trunk in range(3):
        action = table.ask()
        assert isinstance(action, Start) and action.reason == {"cooldown_of": trunk, "at": 10} and action.steps == 12
    table.result(3, 0.09)
    table.result(5, 0.05)
    assert isinstance(table.ask(), NewTrial)  # two are ranked
    table.result(4, 0.2)
    assert table.ask() == Extend(trial=2, steps=30, reason={"rung": 1, "rank": 1, "cut": 1, "of": 3, "loss": 0.05})


def test_the_last_rung_is_cooled_too() -> None:
    table = Table(COOLED | {"num_trials": 1, "min_steps": 90})
    table.ask()
    table.result(0, 0.5)
    action = table.ask()
    assert isinstance(action, Start) and action.steps == 99
    table.result(1, 0.4)
    assert table.ask() is None


@pytest.mark.parametrize("value", [{"cooldown": 0.1}, {"merge": 3}], ids=["cooldown", "mean"])
def test_a_failed_value_is_the_worst_and_a_cancelled_one_does_not_count(value: dict[str, Any]) -> None:
    table = Table(ASHA | {"rung_value": value})
    for _ in range(4):
        table.ask()
    for trial in range(4):
        table.result(trial, 0.5)
    for _ in range(4):
        table.ask()
    table.fail(4)
    table.cancel(5)
    table.result(6, 0.7)
    assert isinstance(table.ask(), NewTrial)  # two count: the one that failed, and trial 2
    table.result(7, 0.6)
    assert table.ask() == Extend(trial=3, steps=30, reason={"rung": 1, "rank": 1, "cut": 1, "of": 3, "loss": 0.6})


# --------------------------------------------------------------------------------------------------------- sequences


@given(
    at=st.integers(1, 60),
    steps=st.integers(1, 30),
    shape=st.sampled_from(["linear", "cosine", "sqrt"]),
    peak=st.sampled_from([0.1, 3, 1e-3]),
)
def test_a_cooldown_of_a_constant_rate_is_the_decay_of_wsd(at: int, steps: int, shape: str, peak: float) -> None:
    """By name: a study with such a schedule shares it."""
    made = cooldown_hp({"lr": peak, "bs": 8}, at, steps, falling=["lr"], shape=shape, final=0)
    wsd = {"family": "wsd", "peak": peak, "warmup": 0, "stable_until": at, "decay": steps, "shape": shape}
    end = at + steps
    assert path(made, end, "") == path({"lr": parse(wsd).to_json(), "bs": parse(8).to_json()}, end, "")


@given(
    lr=st.sampled_from(
        [
            {"family": "cosine", "init": 0.3, "min": 0.0, "period": 40},
            {"family": "warmup", "steps": 7, "then": 0.2},
            {"family": "piecewise", "parts": [{"steps": 5, "sequence": 0.1}, {"sequence": 0.02}]},
        ]
    ),
    at=st.integers(1, 39),
    final=st.sampled_from([0.0, 0.01]),
)
def test_a_cooldown_begins_as_its_trunk_and_never_rises(lr: dict[str, Any], at: int, final: float) -> None:
    made = parse(cooldown_hp({"lr": lr}, at, 10, falling=["lr"], shape="linear", final=final)["lr"])
    trunk = parse(lr)
    assert [made.at(step) for step in range(at)] == [trunk.at(step) for step in range(at)]
    tail = [made.at(step) for step in range(at, at + 12)]
    assert tail == sorted(tail, reverse=True)  # type: ignore[type-var]
    assert tail[0] == trunk.at(at) and tail[-1] == min(final, trunk.at(at))  # type: ignore[type-var]


def test_rates_that_cannot_decay_are_reported() -> None:
    with pytest.raises(SequenceError, match="must be a number at step 3, where its cooldown begins, got 'adam'"):
        cooldown_hp({"lr": "adam"}, 3, 2, falling=["lr"], shape="linear", final=0)
    with pytest.raises(SequenceError, match="must have what falls in a cooldown in every configuration, got bs"):
        cooldown_hp({"bs": 8}, 3, 2, falling=[], shape="linear", final=0)


def test_groups_fall_with_their_sequence() -> None:
    value = CooldownValue(cooldown=4)
    assert [name for name in ("lr", "lr.head", "lrs", "momentum") if value.falls(name)] == ["lr", "lr.head"]
    assert [CooldownValue(cooldown=0.1).steps(rung) for rung in (1, 10, 25, 90)] == [2, 2, 3, 9]
    assert value.steps(1000) == 4


# ------------------------------------------------------------------------------------------------- whole studies


def annealed_loss(node: Node, step: int) -> dict[str, float | None]:
    """A larger rate is worse until it has fallen, and better after that."""
    now, before = node.segment.values(step - 1)["lr"], parse(node.hp["lr"]).at(0)
    assert isinstance(now, float | int) and isinstance(before, float | int)
    return {"loss": 1 - before / 10 - step / 10_000 if now < before else 1 + before + 1 / step}


SHA = COOLED | {"kind": "sha", "sampler": "grid"}


def ran() -> Any:
    world = run_simulator(spec(SHA, space=FLAT), measure=annealed_loss, slots=2)
    return world.plan, world.plan.studies[STUDY]


def test_the_winner_is_the_cooled_state_and_it_is_kept() -> None:
    plan, study = ran()
    winner, result = results.best(plan, study) or pytest.fail("there is none")
    assert (winner.cooldown_of, winner.steps, result.step) == (winner.cooldown_of, 99, 99)
    trunk = study.trials[winner.cooldown_of]
    assert parse(trunk.hp["lr"]).at(0) == 0.3 and trunk.steps == 90
    assert states_of(plan, winner)[99].key in required_keys(plan)


def test_what_is_shown_of_it() -> None:
    _, study = ran()
    board = build_leaderboard(study)
    trunk = next(trial for trial in study.trials if trial.steps == 90)
    cooldown = next(trial for trial in study.trials if trial.cooldown_of == trunk.number and trial.steps == 12)
    assert board.ladder()[0].values[trunk.number] == pytest.approx(0.97 - 0.0012)  # that of the cooldown
    assert board.rung(cooldown.number) is None
    assert state_text(study, trunk, trunk.state, board) == "trained to step 90, ranked by its cooldown"
    assert state_text(study, cooldown, cooldown.state, board) == f"cooled trial {trunk.number} down from step 10 to 12"
    rested = next(trial for trial in study.trials if trial.steps == 10)
    assert "by its cooldown" in state_text(study, rested, rested.state, board)


def test_the_steps_of_cooldowns_are_counted() -> None:
    """Nine of 2 steps, three of 3, one of 9; the first of these is still as in the trunk, if that continues."""
    plan, study = ran()
    assert study.executed == study.unique == 9 * 10 + 3 * 20 + 60 + 9 * 2 + 3 * 3 + 9 - 3 - 1
    costs = cost(plan, study)
    assert costs.alone == 9 * 90 + 9 * 12 + 3 * 33 + 99
    assert costs.run == study.executed
    seen = preview(spec(SHA, space=FLAT), slots=2)
    assert seen["cooldowns"] == {"trials": 13, "steps": 36} and seen["unique"] == study.unique


@pytest.mark.parametrize("repeats", [3, {"seeds": 3, "from": "branch"}])
def test_repeats_of_a_cooldown_go_on_from_those_of_its_trunk(repeats: Any) -> None:
    world = run_simulator(spec(SHA, space=FLAT, repeats=repeats), slots=2)
    study = world.plan.studies[STUDY]
    assert study.state == "completed" and study.executed == study.unique
    assert replay(numbered_events(world.events), STUDY).identical


def test_equal_trunks_share_their_cooldowns() -> None:
    world = simulator(spec(COOLED | {"sampler": "grid"}, space=FLAT), measure=annealed_loss)
    world.submit(StudyId("second"), spec(COOLED | {"sampler": "grid"}, space=FLAT).to_json())
    world.run()
    first, second = (world.plan.studies[name] for name in (STUDY, StudyId("second")))
    assert first.executed + second.executed == first.unique == second.unique


def test_a_sampler_learns_the_value_of_the_cooldown_and_draws_no_configuration_for_it() -> None:
    for sampler in ("random", "sobol"):
        world = run_simulator(spec(COOLED | {"sampler": sampler}), slots=2)
        study = world.plan.studies[STUDY]
        plain = run_simulator(spec(ASHA | {"sampler": sampler}), slots=2)
        assert configurations(study) == configurations(plain.plan.studies[STUDY])


def configurations(study: Study) -> list[Any]:
    return [trial.hp for trial in study.trials if trial.cooldown_of is None]


def test_a_cooldown_does_not_go_on_when_its_trunk_is_cancelled_and_nothing_waits_for_it() -> None:
    world = simulator(spec(COOLED, space=FLAT), slots=1)
    study = world.plan.studies[STUDY]
    while world.advance() and len(study.trials) < 2:
        pass
    assert study.trials[1].cooldown_of == 0
    world.give(c.CancelTrial(study=STUDY, trial=0))
    world.run()
    assert study.state == "completed" and study.trials[0].requested_steps == [10]


# --------------------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize(
    ("tuner", "fields", "text"),
    [
        (
            {"rung_value": {"cooldown": 0}},
            {},
            "tuner.rung_value.cooldown: must be a number of steps, at least 2, or a fraction of",
        ),
        ({"rung_value": {"cooldown": 1.0}}, {}, "or a fraction of the rung's, above 0 and below 1, got 1.0"),
        ({"rung_value": {"cooldown": True}}, {}, "or a fraction of the rung's, above 0 and below 1, got True"),
        ({"rung_value": {}}, {}, "tuner.rung_value.cooldown: is missing: a number of steps"),
        ({"rung_value": {"cooldown": 0.1, "shape": "exp"}}, {}, "must be linear, cosine or sqrt"),
        ({"rung_value": {"cooldown": 0.1, "final": -1}}, {}, "must be a finite number, 0 or more"),
        (
            {"rung_value": {"cooldown": 0.1, "sequence": "rate"}},
            {},
            "tuner.rung_value.sequence: must be a hyper-parameter of every trial, which falls in a cooldown; there are "
            "lr, bs, got 'rate'",
        ),
        (
            {"rung_value": {"cooldown": 0.1, "sequence": "opt"}},
            {"space": {"opt": ["sgd", "adam"]}},
            "must be numbers that can fall, and opt is 'sgd' at step 10",
        ),
        (
            {"rung_value": {"cooldown": 0.1}, "promote_by": "predicted"},
            {},
            "tuner.rung_value: must be left out where promote_by is predicted",
        ),
        (
            {"rung_value": {"cooldown": 0.1}},
            {"stop_hopeless": {}},
            "stop_hopeless: must be left out beside tuner.rung_value",
        ),
        ({"rung_value": {"cooldown": 0.1}, "num_trials": 50_000}, {}, "must make at most 100,000 trials, got 150,000"),
    ],
)
def test_wrong_tokens_are_refused_in_a_sentence(tuner: dict[str, Any], fields: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecError) as raised:
        spec(ASHA | tuner, **({"space": FLAT} | fields))
    assert text in str(raised.value)


def test_other_tuners_have_no_rung_value() -> None:
    with pytest.raises(SpecError, match=r"tuner\.rung_value: is not a field here"):
        spec({"kind": "median", "num_trials": 3, "max_steps": 9, "interval": 3, "rung_value": {"cooldown": 2}})


def test_a_study_without_it_is_written_as_ever() -> None:
    assert "rung_value" not in StudySpec.from_dict(spec(ASHA).to_json()).to_json()["tuner"]
    written = spec(COOLED, space=FLAT).to_json()["tuner"]["rung_value"]
    assert written == {"cooldown": 0.1, "shape": "linear", "final": 0.0, "sequence": "lr"}


def test_advice_where_a_schedule_has_fallen_by_itself() -> None:
    falls = {"lr": {"family": "cosine", "init": 0.3, "min": 0.0, "period": 90}}
    warmed = {"lr": {"family": "warmup", "steps": 7, "then": 0.2}}
    said = "lr has fallen by itself before step 90 in 64 of 64 trials"
    assert any(each.startswith(said) for each in advice(spec(COOLED, space=falls)))
    assert not any("fallen" in each for each in advice(spec(COOLED, space=warmed)) + advice(spec(ASHA, space=falls)))
