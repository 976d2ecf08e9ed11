"""Scripts that own their loop run in turn with the runner, and are exact."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from built_models import image
from walking_scripts import HP, SCRIPT, TWO, train_walk

from stagetree.runtime.checkpoints import state_format
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.model import HpTimeline

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/script/train.py"


def test_split_equals_whole(build: Any) -> None:
    whole = train_walk(build(SCRIPT, scale=2.0), 12)
    assert whole.evaluate()["where"] > 0
    half = image(train_walk(build(SCRIPT, scale=2.0), 5))
    gone_on = build(SCRIPT, scale=2.0)
    gone_on.load(state_format.unpack(half), HpTimeline(HP), 5)
    assert image(train_walk(gone_on, 12)) == image(whole)
    whole.load(state_format.unpack(half), HpTimeline(HP), 5)  # back, in the same object
    assert image(train_walk(whole, 12)) == image(gone_on)


def test_two_models_of_one_script_do_not_meet(build: Any) -> None:
    one, other = build(SCRIPT, scale=1.0), build(SCRIPT, scale=10.0)
    for step in range(1, 5):
        train_walk(one, step)
        train_walk(other, step)
    assert other.evaluate()["where"] > 3 * one.evaluate()["where"]
    assert one.evaluate() == train_walk(build(SCRIPT, scale=1.0), 4).evaluate()


def test_a_fork_continues_the_script(build: Any) -> None:
    """As the check does, which trains each way in a process of its own."""
    model = train_walk(build(SCRIPT), 3)
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writing, repr(train_walk(model, 6).evaluate()["where"]).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert float(os.read(reading, 100)) == train_walk(model, 6).evaluate()["where"]


def test_a_script_gets_the_step_and_the_values(build: Any) -> None:
    text = SCRIPT.replace("where += ", "where = where * 100 + step + hp['lr'] if step < 3 else 0 and ")
    assert train_walk(build(text), 3).evaluate()["where"] == ((0.5) * 100 + 1.49) * 100 + 2.48


def test_a_closed_script_ends(build: Any, capsys: pytest.CaptureFixture[str]) -> None:
    head, _, loop = SCRIPT.partition("for step")
    inside = ("for step" + loop).replace("\n", "\n    ").rstrip()
    model = train_walk(build(f"{head}try:\n    {inside}\nfinally:\n    print('ended')\n"), 2)
    model.trainer.close()
    model.trainer.close()
    assert capsys.readouterr().out == "ended\n"


def test_a_schedule_of_its_own_is_named_in_the_log(build: Any, capsys: pytest.CaptureFixture[str]) -> None:
    schedule = (
        "from torch import nn, optim\nown = optim.lr_scheduler.StepLR(optim.SGD(nn.Linear(1, 1).parameters()), 3)\n"
    )
    build(SCRIPT)
    assert capsys.readouterr().out == ""
    build(schedule + SCRIPT)
    assert capsys.readouterr().out.startswith("--- StepLR: a schedule of the script's own cannot be shared")
    build(schedule.replace("StepLR", "ReduceLROnPlateau").replace(", 3)", ")") + SCRIPT)
    assert capsys.readouterr().out == (
        "--- ReduceLROnPlateau: its rates follow from results, so run.state must save and load its state_dict\n"
    ), "a saved schedule is shared like the rest of the state"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (SCRIPT.replace("run.state(", "dict("), "run.state(save=..., load=..., evaluate=...) must be called before"),
        (SCRIPT.split("for step")[0], "walk.py has ended: it must loop over run.steps()"),
        (SCRIPT.replace("where = 0.0", "import sys; sys.exit(2)"), "walk.py called sys.exit(2)"),
        (SCRIPT.replace("where = 0.0", "where = 1 / 0"), "ZeroDivisionError"),
    ],
)
def test_a_script_that_never_reaches_its_loop(build: Any, text: str, problem: str) -> None:
    with pytest.raises(TrainerFailed) as caught:
        build(text)
    assert problem in caught.value.error


def test_an_argument_that_it_does_not_take(build: Any) -> None:
    with pytest.raises(TrainerFailed, match=r"trainer_args.scal: the script takes scale; did you mean scale\?"):
        build(SCRIPT, scal=2.0)


def test_an_error_in_its_loop_is_its_users(build: Any) -> None:
    model = train_walk(build(SCRIPT.replace("    where +=", "    assert step < 2\n    where +=")), 2)
    with pytest.raises(TrainerFailed, match="assert step < 2"):
        train_walk(model, 3)
    with pytest.raises(TrainerFailed, match="has ended"):
        train_walk(model, 3)


def test_a_loop_that_is_left_early(build: Any) -> None:
    model = build(SCRIPT + "    if step == 2:\n        break\n")
    with pytest.raises(TrainerFailed, match=r"it must loop over run.steps\(\) for as long as"):
        train_walk(model, 4)


def test_an_error_between_steps_leaves_the_loop_as_it_is(build: Any) -> None:
    model = train_walk(build(SCRIPT.replace('{"where": where})\nfor', '{"where": where / (where > 1)})\nfor')), 1)
    with pytest.raises(TrainerFailed, match="ZeroDivisionError"):
        model.evaluate()
    assert train_walk(model, 20).evaluate()["where"] > 1


STREAMED = """
class Data(list):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

run.stream(Data([1, 2, 3]))
"""


@pytest.mark.parametrize("streams", ["", STREAMED])
def test_unsaveable_values_are_named_by_the_scripts_variable(build: Any, streams: str) -> None:
    """It was `state['trainer']['state']['seen']`, a place that no script has."""
    text = SCRIPT.replace('{"where": where}, load', '{"where": where, "seen": {1, 2}}, load')
    model = train_walk(build(text.replace("for step", f"{streams}for step")), 1, HP)
    with pytest.raises(TrainerFailed) as failed:
        model.save()
    assert failed.value.error == 'save()["seen"] is a set; write list(seen)'
    assert failed.value.is_final and failed.value.kind == "exception"


@pytest.mark.parametrize(
    ("reads", "unread"),
    [
        ("hp['lr']", ["decay"]),
        ("hp['lr'] if step < 2 else hp['decay']", []),
        ("sum(hp.values())", []),
        ("1.0", ["decay", "lr"]),
    ],
)
def test_values_that_a_script_read_are_known(build: Any, reads: str, unread: list[str]) -> None:
    model = train_walk(build(SCRIPT.replace('hp["lr"]', f"({reads})")), 3, TWO)
    assert model.trainer.unread() == unread  # type: ignore[attr-defined]


@pytest.mark.slow
def test_by_hand_it_trains_one_configuration(tmp_path: Path) -> None:
    file = tmp_path / "walk.py"
    file.write_text(SCRIPT.replace("scale=1.0", "scale=1.0, hp={'lr': 0.5}, steps=5, eval_every=2, seed=1"))
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=True)
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["step 2", "step 4", "step 5"]
    assert "where " in done.stdout


def test_the_example_differs_from_a_plain_script_by_few_lines() -> None:
    assert sum("# stagetree" in line for line in EXAMPLE.read_text().splitlines()) <= 15
