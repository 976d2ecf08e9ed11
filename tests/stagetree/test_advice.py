"""What would make a study cost less."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from app.domain.terms import StudyId
from app.simulation.preview import preview
from app.simulation.simulator import Simulator
from stagetree import Exponential, StudySpec, choice, loguniform, uniform
from stagetree.advice import advice, afterthoughts
from stagetree.advice.tuning import reachable_steps
from stagetree.spec.tuners import RandomTuner
from tests.plans import max_examples

FIELDS = {"name": "x", "trainer": "x", "metric": "x", "mode": "max"}
ASHA = {"kind": "asha", "num_trials": 40, "min_steps": 4, "max_steps": 32, "eta": 2}


def spec(space: Any, **fields: Any) -> StudySpec:
    return StudySpec(**FIELDS, **{"space": space, "tuner": ASHA, **fields})


def decaying(init: Any) -> dict[str, Any]:
    return {"family": "exponential", "init": init, "gamma": uniform(0.9, 1)}


def test_a_drawn_peak_shares_nothing() -> None:
    space = {"lr": decaying(loguniform(1e-4, 1e-1)), "bs": choice([32, 64])}
    [said] = advice(spec(space, tuner={**ASHA, "sampler": "random"}))
    [default] = advice(spec(space))
    branches = "no two random trials begin alike, and only branches that the sampler trunks proposes share steps"
    assert default == said.replace("no two trials begin alike and nothing is shared", branches)
    assert said == (
        "lr.init is drawn, so no two trials begin alike and nothing is shared: list 4 values and draw what comes "
        "later, such as a decay; 40 trials then have 4 beginnings to train, not 40"
    )


def test_several_are_drawn() -> None:
    [said] = advice(spec({"lr": decaying(uniform(0.1, 1)), "momentum": uniform(0.8, 0.99)}))
    assert said.startswith("lr.init and momentum are drawn, so no two random trials begin alike")
    assert "list 4 values each" in said and "have 16 beginnings" in said


LENGTHS = [1000, 2000, 4000]
WHOLE = {"ratio": 1}


def give_advice(study: StudySpec) -> list[str]:
    return advice(study, lambda each: int(preview(each, slots=1)["unique"]))


@pytest.mark.parametrize(
    "lr",
    [
        {"family": "cosine", "init": 0.1, "min": 0, "period": WHOLE},
        {"family": "polynomial", "init": 0.1, "final": 0, "steps": WHOLE, "power": 1},
    ],
)
def test_lengths_with_schedules_that_are_stretched_to_them_are_cheaper_as_wsd(lr: Any) -> None:
    """Such lengths once saved nothing without a warning. The proposal has the cost that the advice names."""
    [said] = give_advice(spec({"max_steps": LENGTHS, "lr": lr}, tuner={"kind": "grid"}))
    proposed = "{family: wsd, peak: 0.1, warmup: 0, decay: {ratio: 0.2}}"
    assert said == (
        "lr falls over the whole length of its trial, so trials of 3 lengths share next to nothing: as wsd with a tail "
        f"of a fifth they take 4598 steps instead of 6998, 34% less: write lr: {proposed}"
    )
    written = spec({"max_steps": LENGTHS, "lr": yaml.safe_load(proposed)}, tuner={"kind": "grid"})
    assert preview(written, slots=1)["unique"] == 4598
    assert give_advice(written) == []


def test_listed_trials_of_several_lengths_get_the_advice_too() -> None:
    rates = {steps: {"family": "exponential", "init": 0.1, "gamma": 0.001 ** (1 / steps)} for steps in LENGTHS}
    trials = [{"hp": {"lr": lr, "bs": 64}, "steps": steps} for steps, lr in rates.items()]
    [said] = give_advice(StudySpec(**FIELDS, tuner={"kind": "trials", "trials": trials}))
    assert "4598 steps instead of 6998" in said


def test_the_warm_up_stays_and_peaks_are_listed() -> None:
    cosine = {"family": "cosine", "init": choice([0.1, 0.2]), "min": 0.01, "period": WHOLE}
    lr = {"family": "warmup", "steps": 100, "then": cosine}
    [said] = give_advice(spec({"max_steps": LENGTHS, "lr": lr}, tuner={"kind": "grid"}))
    assert "write lr: {family: wsd, peak: {choice: [0.1, 0.2]}, warmup: 100, decay: {ratio: 0.2}" in said
    assert "9196 steps instead of 13596" in said


@pytest.mark.parametrize(
    ("lr", "fields"),
    [
        ({"family": "wsd", "peak": 0.1, "warmup": 100, "decay": {"ratio": 0.2}}, {}),
        ({"family": "power", "peak": 0.1, "warmup": 100}, {}),
        ({"family": "multistep", "init": 0.1, "milestones": [{"ratio": 0.5}], "gamma": 0.1}, {}),
        (0.1, {}),
        ({"family": "cosine", "init": 0.1, "min": 0, "period": WHOLE}, {"merge": False}),
        (choice(["a", "b"]), {}),
    ],
)
def test_schedules_that_share_get_no_advice_on_lengths(lr: Any, fields: Any) -> None:
    assert give_advice(spec({"max_steps": LENGTHS, "lr": lr}, tuner={"kind": "grid"}, **fields)) == []


def test_other_stretched_schedules_are_independent_of_the_rate() -> None:
    """With wsd alone the study would share as little as before."""
    cosine = {"family": "cosine", "init": 0.1, "min": 0, "period": WHOLE}
    momentum = {"family": "cosine", "init": 0.9, "min": 0.5, "period": WHOLE}
    assert give_advice(spec({"max_steps": LENGTHS, "lr": cosine, "momentum": momentum}, tuner={"kind": "grid"})) == []


def test_texts_that_were_meant_as_numbers_are_named() -> None:
    """`lr: ["1e-3"]` and `lr: [0.1 0.01]` are texts: the optimizer was the first to say so, from a traceback."""
    values = {"family": "values", "values": ["3", 4], "milestones": [1]}
    space = {"lr": ["1e-3", "0.1 0.01", 0.1], "wd": None, "bs": values, "opt": ["adam", "1st", "v2"]}
    assert advice(spec(space, tuner={"kind": "grid", "max_steps": 3})) == [
        "lr has the text '1e-3' among its values: 1e-3 is a number, without quotes",
        "lr has the text '0.1 0.01' among its values: [0.1, 0.01] is a list, without quotes",
        "wd is null, which trainers are given as None: write its values, or leave it out",
        "bs has the text '3' among its values: 3 is a number, without quotes",
    ]


def test_the_best_step_of_a_trial_wants_its_state_kept() -> None:
    """It is kept, unless the study says when to keep states, or the best is the mean of several trainings."""
    fields: dict[str, Any] = {"tuner": {"kind": "grid", "max_steps": 12}, "value": "best", "eval_every": 2}
    assert advice(spec({"lr": [0.1, 0.2]}, **fields)) == []
    for more in ({"keep_every": 3}, {"repeats": 2}):
        [said] = advice(spec({"lr": [0.1, 0.2]}, **fields, **more))
        assert said.endswith("keeps the state there only by chance: keep_every: 2 keeps one at each evaluation")
    assert advice(spec({"lr": [0.1, 0.2]}, **fields, keep_every=1)) == []
    assert advice(spec({"lr": [0.1, 0.2]}, **fields, keep_best=0)) == []


def test_advice_counts_the_trials_of_the_tuner() -> None:
    """For `hyperband`, whose brackets define the trials, it was 64."""
    tuner = {"kind": "hyperband", "min_steps": 2, "max_steps": 18, "eta": 3}
    [said] = advice(spec({"lr": uniform(0.1, 1)}, tuner=tuner))
    assert said.endswith("17 trials then have 4 beginnings to train, not 17")


@pytest.mark.parametrize(
    "quiet",
    [
        spec({"lr": decaying(choice([0.1, 0.2])), "bs": choice([32, 64])}),
        spec({"lr": [Exponential(0.1, 0.9), 0.2]}, tuner={"kind": "grid", "max_steps": 4}),
        spec({"lr": uniform(0, 1)}, merge=False),
        spec(None, tuner={"kind": "external"}),
        spec({"lr": uniform(0, 1)}, tuner={"kind": "random", "num_trials": 2, "max_steps": 4}),
    ],
    ids=["listed", "grid", "alone", "external", "two"],
)
def test_nothing_to_say(quiet: StudySpec) -> None:
    assert advice(quiet) == []


def test_following_advice_saves_the_stated_steps() -> None:
    before = preview(spec({"lr": decaying(uniform(0.1, 1))}), slots=1)
    after = preview(spec({"lr": decaying(choice([0.1, 0.4, 0.7, 1.0]))}), slots=1)
    assert before["advice"] and not after["advice"]
    assert before["requested"] == before["unique"]
    assert after["unique"] <= before["unique"] - (40 - 4)  # each of 40 trained its first step; 4 beginnings do now


def test_savings_are_stated_in_steps() -> None:
    """The steps of the study as it is, and of one that lists beginnings and draws the rest half-way."""
    before = preview(spec({"lr": decaying(uniform(0.1, 1))}), slots=1)
    [said] = before["advice"]
    found = re.search(r"if they part half-way, (\d+) steps instead of (\d+), (\d+)% less$", said)
    assert found is not None
    fewer, now, share = map(int, found.groups())
    assert now == before["unique"] and fewer < 0.6 * now and share == round(100 * (1 - fewer / now))
    parts = [{"steps": 16, "sequence": choice([0.1, 0.4, 0.7, 1.0])}, {"sequence": decaying(uniform(0.1, 1))}]
    taken = preview(spec({"lr": {"family": "piecewise", "parts": parts}}), slots=1)
    assert taken["advice"] == [] and abs(taken["unique"] - fewer) <= 16


def test_of_many_trials_the_first_thousand_are_compared() -> None:
    """Ten thousand were planned three times over, which took three times as long."""
    counts = list[int]()

    def count(study: StudySpec) -> int:
        counts.append(tuner.num_trials if isinstance(tuner := study.tuner, RandomTuner) else 0)
        return 100_000 if len(counts) == 1 else 60_000

    drawn = {"kind": "random", "num_trials": 10_000, "max_steps": 100}
    [said] = advice(spec({"lr": uniform(0.1, 1)}, tuner=drawn), count)
    assert said.endswith("60000 steps instead of 100000, 40% less among the first 1000 trials")
    assert counts == [1000, 1000]


def test_uncountable_steps_are_not_stated() -> None:
    drawn = spec({"lr": decaying(uniform(0.1, 1))})
    assert advice(drawn, lambda study: None) == advice(drawn)
    assert advice(spec({"lr": uniform(0, 1)}, where="lr < 0.5"), lambda study: 10) == advice(
        spec({"lr": uniform(0, 1)}, where="lr < 0.5")
    )  # nothing is saved


CURVES: dict[str, Any] = {"num_trials": 8, "max_steps": 20}
LISTED = {"lr": choice([0.1, 0.2]), "bs": choice([16, 32, 64, 128])}


@pytest.mark.parametrize(
    ("tuner", "fields", "points"),
    [
        ({"kind": "early_term"}, {}, 0),
        ({"kind": "early_term", "boundary": 5}, {}, 3),
        ({"kind": "pop", "boundary": 10}, {"eval_every": 5}, 2),
        ({"kind": "median", "interval": 5}, {"stop_hopeless": {"boundary": 10}}, 1),
    ],
)
def test_a_rule_that_can_end_no_trial(tuner: dict[str, Any], fields: dict[str, Any], points: int) -> None:
    """The advice names the missing field, and with its proposal nothing is left to advise."""
    study = spec(LISTED, tuner=CURVES | tuner, **fields)
    [said] = advice(study)
    assert f"from 4 evaluations on, and a trial has {points} when it is last asked about, so none would end" in said
    assert said.endswith("give eval_every: 1 and boundary: 2")
    rule = {"tuner": CURVES | tuner | {"boundary": 2}}
    if "stop_hopeless" in fields:
        rule = {"tuner": CURVES | tuner, "stop_hopeless": {"boundary": 2}}
    assert advice(spec(LISTED, eval_every=1, **rule)) == []


def test_rules_with_enough_evaluations() -> None:
    for tuner in ({"kind": "pop"}, {"kind": "early_term", "boundary": 4}):
        assert advice(spec(LISTED, tuner=CURVES | tuner)) == []


# ------------------------------------------------------------------------------------------------ never reached

NEWCOMER = {"kind": "asha", "num_trials": 12, "min_steps": 1, "max_steps": 100, "eta": 3}


def test_too_few_trials_for_the_top_rung() -> None:
    said = advice(spec({"lr": uniform(0.1, 1)}, tuner=NEWCOMER))[0]
    assert said == (
        "with 12 trials asha is sure to train one only to step 9 of 100: for all 100 give 243 trials, or "
        "min_steps 12, or type: stopping, or finish_best: 1"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "cure", [{"num_trials": 243}, {"min_steps": 12}, {"type": "stopping"}, {"finish_best": 1}, {"num_trials": 5000}]
)
def test_repeated_advice_ends(cure: dict[str, Any]) -> None:
    cured = spec({"lr": uniform(0.1, 1)}, tuner=NEWCOMER | cure)
    assert not any("is sure to" in each for each in advice(cured))
    if cure.get("num_trials") != 5000:
        assert preview(cured, slots=1)["critical_path_steps"] == 100
    assert afterthoughts(cured, 100) == []


@pytest.mark.parametrize(
    ("cure", "steps"), [({"num_trials": 242}, 81), ({"min_steps": 11}, 99), ({"early_stopping_rate": 1}, 27), ({}, 9)]
)
def test_a_little_less_does_not_do(cure: dict[str, Any], steps: int) -> None:
    assert reachable_steps(spec({"lr": uniform(0.1, 1)}, tuner=NEWCOMER | cure)) == steps


def test_afterwards() -> None:
    study = spec({"lr": uniform(0.1, 1)}, tuner=NEWCOMER)
    first, why = afterthoughts(study, 9)
    assert first == "no trial was trained past step 9 of 100; finish_best: 1 trains the best one to the end"
    assert why.startswith("with 12 trials asha is sure to train one only to step 9 of 100")
    assert afterthoughts(spec({"lr": [1, 2]}, tuner={"kind": "grid", "max_steps": 4}), 4) == []


HALVING = st.one_of(
    st.fixed_dictionaries(
        {
            "kind": st.just("asha"),
            "num_trials": st.integers(1, 60),
            "min_steps": st.integers(1, 6),
            "max_steps": st.integers(6, 90),
            "eta": st.integers(2, 4),
            "early_stopping_rate": st.integers(0, 2),
            "brackets": st.integers(1, 3),
        }
    ),
    st.fixed_dictionaries(
        {
            "kind": st.just("async_hyperband"),
            "num_trials": st.integers(1, 60),
            "max_steps": st.integers(1, 90),
            "eta": st.integers(2, 4),
            "brackets": st.integers(1, 4),
        }
    ),
    st.fixed_dictionaries({"kind": st.just("hyperband"), "max_steps": st.integers(1, 30)}),
    st.fixed_dictionaries(
        {
            "kind": st.just("sha"),
            "num_trials": st.integers(30, 50),
            "min_steps": st.integers(1, 4),
            "max_steps": st.integers(4, 30),
            "eta": st.integers(3, 4),
        }
    ),
)


@pytest.mark.slow
@max_examples(20)
@given(tuner=HALVING, seed=st.integers(0, 10**6), slots=st.integers(1, 4))
def test_advice_predicts_the_outcome(tuner: dict[str, Any], seed: int, slots: int) -> None:
    """Exactly, where the first is the best and so on; no less, for any results and slots."""
    study = spec({"lr": uniform(0.1, 1), "few": choice([1, 2])}, tuner=tuner | {"distinct": True})
    foretold = reachable_steps(study)
    assert foretold is not None and preview(study, slots=1)["critical_path_steps"] == foretold
    world = Simulator(slots=slots, measure=lambda node, step: {"x": Random(f"{seed}/{node.id}/{step}").random()})
    world.submit(StudyId("s"), study.to_json())
    world.run()
    assert max(trial.steps for trial in world.plan.studies[StudyId("s")].trials) >= foretold


def test_repeats_and_few_trials_are_reported_together() -> None:
    few, short = advice(spec({"lr": choice([1, 2, 3, 4]), "bs": choice([1, 2])}, tuner=NEWCOMER))
    again = spec({"lr": choice([1, 2, 3, 4]), "bs": choice([1, 2])}, tuner=NEWCOMER)
    assert afterthoughts(again, 3)[1] == short
    assert few.startswith("8 different, 12 asked for: the space holds no more configurations")
    assert short.startswith("with 8 trials asha is sure to train one only to step 3 of 100") and "243" not in short


MULTISTEP: dict[str, Any] = {"family": "multistep", "init": 0.1, "gamma": 0.1}
RUNGS = {"kind": "asha", "num_trials": 27, "min_steps": 4, "max_steps": 36, "reduction_factor": 3}


def test_a_rung_before_trials_differ_promotes_by_chance() -> None:
    """A third of equal trials was promoted, without a warning."""
    late = {"lr": choice([MULTISTEP | {"milestones": [at]} for at in range(10, 60)])}
    [said] = advice(spec(late, tuner=RUNGS))
    found = re.fullmatch(
        "at the rung at step 4 all trials are equal, since values change later, and one of 3 is promoted, so "
        r"chance decides which of equal ones is: give min_steps: (\d+) or more",
        said,
    )
    assert found is not None and 12 <= int(found[1]) <= 20
    assert advice(spec(late, tuner=RUNGS | {"min_steps": int(found[1]), "max_steps": 9 * int(found[1])})) == []
    assert not any("chance" in each for each in advice(spec({"lr": choice([0.1, 0.2, 0.3])}, tuner=RUNGS)))
    few = advice(spec({"lr": choice([0.1, 0.2])}, tuner=RUNGS))
    assert not any("chance" in each for each in few), "they never differ more, but once the advice said that they would"


@pytest.mark.parametrize("kind", ["asha", "sha", "hyperband", "async_hyperband"])
def test_a_rung_inside_a_warm_up_gets_advice(kind: str) -> None:
    """The trials that warm up fastest were promoted, without a warning."""
    lr = {"family": "warmup", "steps": choice([3, 6, 8]), "then": decaying(choice([0.1, 0.2]))}
    tuner = {"kind": kind, "max_steps": 32, "eta": 2, **({"num_trials": 40} if kind != "hyperband" else {})}
    [said] = [each for each in advice(spec({"lr": lr}, tuner=tuner | {"min_steps": 4})) if "warms up" in each]
    assert re.fullmatch(
        r"at the rung at step 4 lr still warms up, until step 6 to 8, in \d+ of \d+ configurations: results there say "
        "little of those after it: give min_steps: 8 or more",
        said,
    )
    wsd = {"family": "wsd", "peak": choice([0.1, 0.2]), "warmup": 8, "stable_until": 20, "decay": 12}
    for quiet in (spec({"lr": lr}, tuner=tuner | {"min_steps": 8}), spec({"lr": wsd}, tuner=tuner | {"min_steps": 8})):
        assert not any("warms up" in each for each in advice(quiet))
    cycle = {"family": "one_cycle", "max": choice([0.1, 0.2]), "up": 8, "down": 24}
    for rising in (wsd, cycle):
        assert any("until step 8, in" in each for each in advice(spec({"lr": rising}, tuner=tuner | {"min_steps": 4})))
    falling = cycle | {"init": 0.3}
    assert not any("warms up" in each for each in advice(spec({"lr": falling}, tuner=tuner | {"min_steps": 4})))


def test_a_rate_that_is_zero_before_the_last_rung() -> None:
    falling = MULTISTEP | {"gamma": 0.0, "milestones": [10]}
    said = [each for each in advice(spec({"lr": choice([falling, 0.1, 0.2])}, tuner=RUNGS)) if "lr is 0" in each]
    assert [each[:27] for each in said] == ["lr is 0 from step 10 on in "]
    assert said[0].endswith("its schedule end there, such as period: 36")


@pytest.mark.parametrize(("sampler", "trials", "learns"), [("tpe", 8, False), ("tpe", 12, True), ("gp", 4, False)])
def test_a_sampler_that_ends_before_it_learns(sampler: str, trials: int, learns: bool) -> None:
    tuner = RUNGS | {"sampler": sampler, "num_trials": trials}
    said = advice(spec({"lr": choice([0.1, 0.2, 0.3, 0.4]), "bs": choice([1, 2, 3, 4])}, tuner=tuner))
    assert any("draws by chance" in each for each in said) != learns
