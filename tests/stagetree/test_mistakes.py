"""Mistakes of users, each with its answer: one sentence that names the place and says what would be right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stagetree import Trainer
from stagetree.advice import advice
from stagetree.spec import SpecError, StudySpec
from stagetree.spec.file import change_fields
from stagetree.trainer.base import construct
from stagetree.trainer.values import GivenValues

HEAD = "name: x\ntrainer: t\nmetric: loss\nmode: min\n"
GRID = "tuner: {kind: grid, max_steps: 3}\n"
RANDOM = "tuner: {kind: random, num_trials: 4, max_steps: 3}\n"


def space(text: str, tuner: str = GRID, **more: str) -> str:
    return HEAD + f"space: {text}\n" + tuner + "".join(f"{name}: {value}\n" for name, value in more.items())


REFUSED: list[tuple[str, str]] = [
    # the text of the file
    (space("{lr: {log_uniform: 1e-4, 1e-1}}"), ":5: write {log_uniform: [1e-4, 1e-1]}: two numbers are a list"),
    (HEAD + "space:\nlr: 0.1\n" + GRID, ": lr: stands beside space: indent it, so that lr is in the space"),
    (HEAD + "space:\n  lr:0.1\n  bs:1\n" + GRID,
     ": space: must be an object from hyper-parameter to values, got 'lr:0.1"),
    # tuners
    (
        space("{a: 1}", "tuner: {kind: grid, max_steps: '40'}\n"),
        ": tuner.max_steps: must be the number of steps to train "
        "each trial for, at least 1, got '40': write 40, without quotes",
    ),
    (
        space("{a: 1}", "tuner: {kind: grid, max_steps: [1, 2]}\n"),
        ": tuner.max_steps: must be the number of steps to trai"
        "n each trial for, at least 1, got [1, 2]; a length that is searched, or that a schedule ends, is a hyper-pa",
    ),
    (space("{a: [1, 2]}", "tuner: {kind: asha, num_trials: 4, min_steps: 9, max_steps: 3}\n"),
     ": tuner.min_steps: must not be more than max_steps, 3, got 9"),
    # schedules and distributions
    (space("{lr: {family: wsd, peak: 1, warmup: 2, decay: 5}}"),
     ": space.lr.decay: must end with the trial: warmup 2 and decay 5 are 7 steps, and the trial has 3"),
    (space("{lr: {init: 0.1, gamma: 0.9}}"), ": space.lr.family: is missing: exponential has these fields"),
    (space("{lr: {family: exponential, init: [0.1, 0.2], gamma: 0.9}}"),
     ": space.lr.init: must be a finite number, got [0.1, 0.2]; inside a sequence a choice is written {choice: [0.1"),
    (space("{lr: {a: x, b: y}}"),
     ": space.lr: must be a distribution or a sequence, such as {uniform: [lowest, highest]}"),
    (
        space("{lr: {min: '0.1', max: '1'}}"),
        ": space.lr.uniform: must be [lowest, highest], two finite numbers, got ['0.1'"
        ", '1']: write numbers without quotes",
    ),
    (space("{lr: 0.1:0.5}"),
     ": space.lr: must be a value or a distribution: a study has ranges as {uniform: [0.1, 0.5]}"),
    (space("{n: '1,000'}"), ": space.n: must be a value: write 1000 for the number, got '1,000'"),
    (space("{lr: {family: exponential, init: 1, gamma: 0.9}, lr.init: [1, 2]}"),
     ": space.lr.init: is the name of a field of lr: choose another, such as lr_init"),
    # notations of other tools
    (space("{lr: {_type: loguniform, _value: [0.1, 1]}}"),
     ": space.lr: is a notation of NNI: write {loguniform: [0.1, 1]}"),
    (space("{n: {_type: randint, _value: [1, 5]}}"), ": space.n: is a notation of NNI: write {randint: [1, 4]}"),
    (space("{lr: {type: log, minval: -4, maxval: -1}}"),
     ": space.lr: is a notation of Determined: write {loguniform: [0.0001, 0.1]}"),
    (space("{n: {type: int, minval: 1, maxval: 4}}"),
     ": space.n: is a notation of Determined: write {randint: [1, 4]}"),
    (space("{n: {type: categorical, vals: [1, 4]}}"), ": space.n: is a notation of Determined: write [1, 4]"),
    (space("{lr: {min_value: 0.1, max_value: 1, sampling: log}}"),
     ": space.lr: is a notation of KerasTuner: write {loguni"),
    (space("{lr: {Float: {min_value: 0.1, max_value: 1}}}"),
     ": space.lr: is a notation of KerasTuner: write {uniform: ["),
    (space("{lr: {grid_search: [1, 2]}}"),
     ": space.lr: is a notation of Ray Tune: write the list alone, [1, 2], with the "),
    (space("{lr: {feasibleSpace: {min: 0.1, max: 1}}}"),
     ": space.lr: is a notation of Katib: write {uniform: [0.1, 1]}"),
    (space("{lr: {suggest_float: [0.1, 1]}}"), ": space.lr: is a notation of Optuna: write {uniform: [0.1, 1]}"),
    (space("{lr: {hp.loguniform: [0.1, 1]}}"), ": space.lr: is a notation of Hyperopt: write {loguniform: [0.1, 1]}"),
    (space("{lr: {low: 0.1, high: 1, log: true}}"),
     ": space.lr: must be a sequence, which names its family, or a distribu"),
    # conditions and where
    (space("{x: [1, null, a]}", where="x > 0"),
     ": where: at column 1, this cannot be computed for None and 0, with x: null"),
    (space("{x: [1, 2, a]}", RANDOM, where="x > 0"),
     ": where: at column 1, this cannot be computed for 'a' and 0, with x: "),
    (space("{x: [1, a], y: {uniform: [0, 1]}}", RANDOM, where="y > x"),
     ": where: at column 1, this cannot be computed for "),
    (space("{opt.lr: [1, 2]}", where="opt.lr > 1"),
     ": where: at column 1, write params['opt.lr'] for a name with a dot"),
    (space("{opt/lr: [1, 2]}", where="opt/lr > 1"),
     ": where: at column 1, opt is not a hyper-parameter: there are opt/lr; write params['opt/lr']"),
    (space("{opt.lr: [1, 2]}", where="params['opt.rl'] > 1"),
     ": where: at column 1, opt.rl is not a hyper-parameter: ther"),
    (space("{a: [1, 2]}", where="a = 1"), ": where: at column 3, must be an expression such as"),
    (space("{a: [1, 2]}", where="a"), ": where: at column 1, must be true or false, got 1, with a: 1"),
]  # fmt: skip

ADVISED: list[tuple[str, str]] = [
    (space("{a: ['yes', b]}"), "a has the text 'yes' among its values: true is the value, without quotes"),
    (space("{a: ['Off', b]}"), "a has the text 'Off' among its values: false is the value, without quotes"),
    (space("{a: ['None', b]}"),
     "a has the text 'None' among its values: null is the value, which trainers are given as"),
    (space("{a: NaN}"), "a has the text 'NaN' among its values: values are finite numbers: write one, or null"),
    (space("{a: 1_000}"), "a has the text '1_000' among its values: 1000 is the number"),
    (space("{a: $LR}"), "a has the text '$LR' among its values: nothing is filled in for it: write the value, or pass"),
    (space("{a: '${oc.env:LR}'}"), "a has the text '${oc.env:LR}' among its values: nothing is filled in for it"),
    (space("{a: 'choice(1, 2)'}"),
     "a has the text 'choice(1, 2)' among its values: {choice: [1, 2]} is the distributi"),
    (space("{a: 'tune.loguniform(1e-4, 1)'}"),
     "a has the text 'tune.loguniform(1e-4, 1)' among its values: {loguniform:"),
    (space("{bs: [0, -4, 8]}"),
     "bs has 0 among its values: it counts examples of a batch, of which there is at least one"),
    (space("{seed: [0, 1]}"), "seed is a hyper-parameter like any other here, and the study's own seed stays the same"),
    (space("{a: [1, 2]}").replace("loss", "val_accuracy"),
     "mode: min takes the smallest val_accuracy for the best: for"),
    (space("{a: [1, 2]}").replace("mode: min", "mode: max"),
     "mode: max takes the greatest loss for the best: for this"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "answer"), REFUSED, ids=[answer[:60] for _, answer in REFUSED])
def test_refused_files(text: str, answer: str, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(SpecError) as refused:
        StudySpec.from_file(path)
    lines = str(refused.value).splitlines()
    assert lines[0].startswith(f"{path}{answer}") and all(line.startswith(str(path)) for line in lines), lines


@pytest.mark.parametrize(("text", "answer"), ADVISED, ids=[answer[:60] for _, answer in ADVISED])
def test_each_mistake_gets_advice(text: str, answer: str, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    assert any(each.startswith(answer) for each in advice(StudySpec.from_file(path)))


@pytest.mark.parametrize("text", ["adam", "no_decay", "onecycle", "3x3", "a:b", "relu(x)", "v1.2", "none_at_all"])
def test_words_get_no_advice(text: str) -> None:
    spec = StudySpec(
        name="x", trainer="t", metric="loss", mode="min", space={"a": text}, tuner={"kind": "grid", "max_steps": 3}
    )
    assert not [each for each in advice(spec) if "has the text" in each]


@pytest.mark.parametrize(
    ("metric", "mode"), [("val_loss", "min"), ("acc", "max"), ("loss_of_accuracy", "min"), ("x", "max")]
)
def test_modes_that_fit_their_metric(metric: str, mode: str) -> None:
    spec = StudySpec(
        name="x", trainer="t", metric=metric, mode=mode, space={"a": [1]}, tuner={"kind": "grid", "max_steps": 3}
    )
    assert not [each for each in advice(spec) if each.startswith("mode")]


def test_a_dotted_name_in_where_and_in_set() -> None:
    written: dict[str, Any] = {
        "space": {"opt.lr": [0.1, 0.3], "opt/b": [1, 2]},
        "tuner": {"kind": "grid", "max_steps": 2},
    }
    where = "params['opt.lr'] > 0.2 and params['opt/b'] == 1"
    spec = StudySpec(name="x", trainer="t", metric="m", mode="min", where=where, **written)
    assert [{name: each.at(0) for name, each in hp.items()} for hp in spec.configurations()] == [
        {"opt.lr": 0.3, "opt/b": 1}
    ]
    for path in ("space.opt.lr", "space['opt.lr']", 'params["opt.lr"]'):
        assert change_fields(written, {path: 0.5})["space"] == {"opt.lr": 0.5, "opt/b": [1, 2]}
    assert change_fields(written, {"space['a.b'].c": 1})["space"]["a.b"] == {"c": 1}
    assert change_fields(written, {"tuner.max_steps": 9, "x.y": 2}) == {
        **written,
        "tuner": {"kind": "grid", "max_steps": 9},
        "x": {"y": 2},
    }


class Written(Trainer):
    def __init__(self, *, seed: int, device: str, width: int = 1) -> None: ...
    def setup(self, hp: Any) -> None: ...
    def train(self) -> None: ...
    def evaluate(self) -> Any: ...
    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any) -> None: ...


class WithoutSeed(Written):
    def __init__(self, width: int = 1) -> None: ...  # type: ignore[override]


class Misspelt(Trainer):
    def setup(self, hp: Any) -> None: ...
    def train(self) -> None: ...
    def evalute(self) -> Any: ...
    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any) -> None: ...


def mistakes_of_trainers() -> Iterator[tuple[type[Trainer], str]]:
    yield WithoutSeed, "WithoutSeed.__init__ must take seed and device: def __init__(self, *, seed, device, width)"
    yield Misspelt, "Misspelt lacks evaluate; it has evalute"


@pytest.mark.parametrize(("kind", "answer"), mistakes_of_trainers())
def test_classes_that_are_no_trainers(kind: type[Trainer], answer: str) -> None:
    construct(Written, {"width": 2}, 0, "cpu")
    with pytest.raises(TypeError) as refused:
        construct(kind, {"width": 2}, 0, "cpu")
    assert str(refused.value) == answer


def test_a_hyper_parameter_that_the_space_lacks() -> None:
    given = GivenValues()
    hp = given.give({"learning_rate": 0.1, "bs": 2})
    with pytest.raises(KeyError) as refused:
        hp["lr"]
    assert refused.value.args == ("the trainer reads lr, and is given learning_rate, bs",)
    assert given.unread() == ["bs", "learning_rate"]
