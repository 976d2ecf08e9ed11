"""`stagetree check` of scripts finds faults, and names them in the words of a script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from forks import check_in_fork
from walking_scripts import DRAWING, HP, SCRIPT, TWO

from app.cli.check import report_lines
from stagetree.runtime import inexact_reasons

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/script/train.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("forgotten", "cause"),
    [
        ('"optimizer": optimizer.state_dict(), ', "optimizer"),
        pytest.param(', "batch": list(batch)', "batch", marks=pytest.mark.night),
    ],
)
def test_a_forgetful_script_is_detected(tmp_path: Path, forgotten: str, cause: str) -> None:
    text = EXAMPLE.read_text()
    assert forgotten in text
    loading = {"optimizer": '    optimizer.load_state_dict(state["optimizer"])  # stagetree\n'}
    loading["batch"] = text[text.index("    batch = [each.to") :].partition("\n")[0] + "\n"
    (tmp_path / "alice.txt").symlink_to(ROOT / "examples/charlm/alice.txt")
    file = tmp_path / "train.py"
    file.write_text(text.replace(forgotten, "").replace(loading[cause], ""))
    study = str(ROOT / "examples/script/study.yaml")
    command = [sys.executable, "-m", "stagetree", "check", study, "--trainers", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "leaves differ, the first is trainer.state" in done.stdout


IN_MAIN = """
import random
import stagetree

def main():
    run = stagetree.attach("walk")
    chance, where = random.Random(0), [0.0]

    def load(state):
        where[0] = state["where"]

    run.state(save=lambda: {"where": where[0]}, load=load, evaluate=lambda: {"where": where[0]})
    for step, hp in run.steps():
        where[0] += hp["lr"] * chance.random()

main()
"""

NOT_RESTORED = {
    "a data set's": (DRAWING, "loader.dataset (a global of walk.py)"),
    "a function's": (IN_MAIN, "chance (a variable of main())"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("text", "place"), NOT_RESTORED.values(), ids=NOT_RESTORED)
def test_the_place_of_a_generator_is_named_in_words_of_a_script(tmp_path: Path, text: str, place: str) -> None:
    (tmp_path / "walk.py").write_text(text)
    report = check_in_fork({"file": str(tmp_path / "walk.py"), "name": "walk", "args": {}, "seed": 0, "hp": HP})
    assert report["differences"].keys() == {"split"}
    cause = report["differences"]["split"].partition(". Likely: ")[2]
    assert cause.startswith(place) and cause.endswith("not restored by load() of run.state")


FORGOT_TRAIN = """
import stagetree
import torch

def main():
    run = stagetree.attach("walk")
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))

    def evaluate():
        net.eval()
        return {"value": net(torch.ones(2)).sum().item()}

    run.state(save=lambda: net.state_dict(), load=lambda state: net.load_state_dict(state), evaluate=evaluate)
    for step, hp in run.steps():
        net.zero_grad()
        net(torch.ones(2)).sum().backward()
        with torch.no_grad():
            for each in net.parameters():
                each -= hp["lr"] * each.grad

main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", [FORGOT_TRAIN, FORGOT_TRAIN.replace("def main():", "if True:").replace("\nmain()", "")]
)
def test_a_module_left_in_evaluation_mode_is_detected(tmp_path: Path, text: str) -> None:
    (tmp_path / "walk.py").write_text(text)
    report = check_in_fork({"file": str(tmp_path / "walk.py"), "name": "walk", "args": {}, "seed": 0, "hp": HP})
    assert report["differences"].keys() == {"watched"}
    cause = "Likely: evaluate() or save() of run.state changes something that the loop reads"
    assert report["differences"]["watched"].endswith(cause)


@pytest.mark.slow
def test_an_iterator_is_named_in_words_of_a_script(tmp_path: Path) -> None:
    text = SCRIPT.replace("where = 0.0", "import itertools; count = itertools.count(); where = 0.0")
    (tmp_path / "walk.py").write_text(text.replace("random.random()", "next(count)"))
    report = check_in_fork({"file": str(tmp_path / "walk.py"), "name": "walk", "args": {}, "seed": 0, "hp": HP})
    assert report["differences"].keys() == {"split"}
    words = "Likely: count (a global of walk.py) not restored by load() of run.state"
    assert report["differences"]["split"].endswith(words)


def test_each_cause_has_words_for_scripts() -> None:
    causes = [each for name, each in vars(inexact_reasons).items() if name.isupper() and isinstance(each, str)]
    for words in map(inexact_reasons.rephrase_for_scripts, [*causes, inexact_reasons.unrestored_cause(["x"])]):
        assert not any(word in words for word in ("train()", "load_state_dict", "setup()", "state_dict()")), words


@pytest.mark.slow
def test_check_names_values_that_a_script_does_not_read(tmp_path: Path) -> None:
    (tmp_path / "walk.py").write_text(SCRIPT)
    report = check_in_fork({"file": str(tmp_path / "walk.py"), "name": "walk", "args": {}, "seed": 0, "hp": TWO})
    assert (report["unread"], report["differences"]) == (["decay"], {})
    assert "not read          `decay` changes nothing: `setup` never reads it, nor do the 4 steps" in report_lines(
        report
    )
