"""Loops that frameworks own, by the examples: exact in a used object and in another one, and honest about schedules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from built_models import image, train_to

import stagetree.integrations  # noqa: F401 - torchvision can be imported from here on
from stagetree.runtime.checkpoints import state_format
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.loading import imports_of, load_trainer
from stagetree.runtime.model import HpTimeline, Model

EXAMPLES = Path(__file__).parents[2] / "examples"
HP = {"lr": {"family": "linear", "init": 0.05, "slope": -0.005}}
FRAMEWORKS = {"sft": "trl", "dpo": "trl", "cli": "jsonargparse", "keras": "keras"}
FILES = {"sft": "trl/train.py", "dpo": "trl/dpo.py", "cli": "lightning_cli/train.py", "keras": "keras/train.py"}

Build = Callable[..., Model]


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Build]:
    """Builds the model of an example, with some words of its script replaced; nothing is left of it."""
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    monkeypatch.chdir(tmp_path)
    main, finders, path, built = sys.modules["__main__"], list(sys.meta_path), list(sys.path), list[Model]()

    def model(name: str, *instead: tuple[str, str]) -> Model:
        pytest.importorskip(FRAMEWORKS[name])
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        text = (EXAMPLES / FILES[name]).read_text()
        for old, new in instead:
            assert old in text
            text = text.replace(old, new)
        (folder / "train.py").write_text(text)
        if (config := (EXAMPLES / FILES[name]).with_name("config.yaml")).exists():
            (folder / "config.yaml").write_text(config.read_text())
        imports_of.cache_clear()
        built.append(Model.build(load_trainer(folder / "train.py", name), {}, 3, "cpu"))
        return built[-1]

    yield model
    for each in built:
        each.trainer.close()
    imports_of.cache_clear()
    sys.modules["__main__"], sys.meta_path[:], sys.path[:] = main, finders, path


def train(model: Model, until: int, hp: dict[str, Any] = HP) -> Model:
    return train_to(model, until, hp)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("sft", ()),
        ("sft", (("disable_tqdm=True", "disable_tqdm=True, neftune_noise_alpha=5"),)),
        ("dpo", ()),
        ("cli", ()),
        ("cli", (("lightning(run", "cli.trainer.callbacks.append(pl.callbacks.Timer()); lightning(run"),)),
        ("keras", ()),
    ],
    ids=["sft", "sft-with-noise", "dpo", "cli", "cli-with-a-timer", "keras"],
)
def test_a_loop_resumes_bit_for_bit(build: Build, name: str, instead: tuple[tuple[str, str], ...]) -> None:
    """Past the end of an epoch; measured on the way, in the same object and in another one."""
    model, last = build(name, *instead), 10 if name in ("sft", "dpo") else 4
    half = image(train(model, last // 2))
    model.evaluate()
    assert train(model, last).logged_means()
    metrics, whole = model.evaluate(), image(model)
    assert whole != half
    for each in (model, build(name, *instead)):
        each.load(state_format.unpack(half), HpTimeline(HP), last // 2)
        assert image(each) == half
        each.evaluate()
        assert image(train(each, last)) == whole
        assert each.evaluate() == metrics
        assert {"sft": "eval_loss", "dpo": "eval_loss"}.get(name, "val_loss") in metrics


def test_rates_are_those_of_the_study(build: Build) -> None:
    """They make another model, and a schedule of the script's own is no part of it."""
    once = train(build("cli"), 2, {"lr": 0.05})
    again = train(build("cli", ("CosineAnnealingLR(optimizer, 10)", "StepLR(optimizer, 1)")), 2, {"lr": 0.05})
    other = train(build("cli"), 2, {"lr": {"family": "values", "values": [0.05, 0.02], "milestones": [1]}})
    assert once.evaluate() == again.evaluate() != other.evaluate()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "instead", "hp", "says"),
    [
        ("cli", (), {"momentum": 0.5}, "a schedule of the script's own (CosineAnnealingLR) cannot be shared: give"),
        ("cli", (), {"lr": 0.1, "bs": 4}, "hyper-parameter bs: the optimizers have dampening, differentiable"),
        ("cli", (), {"lr": 0.1, "weight_decay": 4}, "hyper-parameter weight_decay: it is 0 where the script says so"),
        ("cli",
         (("lightning(run", "cli.trainer.callbacks.append(pl.callbacks.EarlyStopping('val_loss')); lightning(run"),),
         {"lr": 0.1}, "EarlyStopping: when a trial stops is for the study's tuner to say"),
        ("cli", (("lightning(run", "cli.trainer.callbacks.append(pl.callbacks.Timer('01:00:00:00')); lightning(run"),),
         {"lr": 0.1}, "Timer: when a trial stops is for the study's tuner to say"),
        ("cli", (("pl_module.noise =", "trainer.should_stop = trainer.current_epoch == 1; pl_module.noise ="),),
         {"lr": 0.1}, "the loop of Lightning has ended by itself: a callback stops it"),
        ("keras", (), {"lr": 0.1, "bs": 4}, "hyper-parameter bs: SGD has none; `apply` is for others"),
        ("keras", (("SGD(0.1", "SGD(keras.optimizers.schedules.CosineDecay(0.1, 9)"),), {"lr": 0.1},
         "a schedule of the script's own (CosineDecay) cannot be shared: compile with a number"),
        ("sft", (), {"weight_decay": 0.1}, "a schedule of the script's own (cosine) cannot be shared: give the study"),
        ("sft", (), {"lr": 0.1, "bs": 4}, "hyper-parameter bs: the optimizer has amsgrad, betas"),
        ("sft",
         (("save_strategy=", "load_best_model_at_end=True, save_steps=20, save_strategy="), ('="no"', '="steps"')),
         {"lr": 1}, "load_best_model"),
    ],
)  # fmt: skip
def test_arguments_that_the_study_sets_are_refused(
    build: Build, name: str, instead: tuple[tuple[str, str], ...], hp: dict[str, Any], says: str
) -> None:
    with pytest.raises(TrainerFailed) as failed:
        train(build(name, *instead), 4, hp)
    assert says in failed.value.error
