"""`stagetree preview`: what a study would cost, and what of it would be refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from commandline import Stagetree, Write
from stacks import TOYS
from toys import grid

from app.cli.preview import time_text


@pytest.mark.parametrize(("error", "off"), [(0.08, "8% off"), (2.5, "off by more than itself")])
def test_a_preview_gives_the_error_of_its_time(error: float, off: str) -> None:
    time = {"slot_seconds": 5000.0, "makespan_seconds": 2500.0, "error": error, "settings": 12}
    how = f"steps of 12 settings were measured here, an estimate is {off} (median)"
    assert time_text(time, 2) == f"about 83 min of slot time, 42 min on 2 slots; {how}"


def test_preview_needs_no_server_and_no_trainer(stagetree: Stagetree, write: Write) -> None:
    spec = grid("preview", trainer="not-installed")
    found = stagetree("preview", write(spec), "-o", "json", "--slots", 2).json
    assert (found["requested"], found["unique"], found["critical_path_steps"]) == (96, 56, 12)
    assert found["merge_rate"] == pytest.approx(96 / 56, abs=0.001)
    assert 28 <= found["makespan_steps"] <= 56
    said = stagetree("preview", write(spec))
    assert "96 that the trials take, 56 unique" in said.out and "on 1 slot" in said.out
    assert said.err.startswith("The arguments of trainer not-installed were not checked: it is not in trainer.py")


def test_preview_says_that_its_results_are_equal(stagetree: Stagetree, write: Write) -> None:
    """The numbers of the run were others, without a word."""
    assert "a guess, as if all" not in stagetree("preview", write(grid("adaptive"))).out
    asha = {"kind": "asha", "num_trials": 8, "min_steps": 3, "max_steps": 12, "reduction_factor": 2}
    said = stagetree("preview", write(grid("adaptive", tuner=asha)))
    assert "a guess, as if all results were equal: in a run they are not, and its numbers are others" in said.out


def test_preview_refuses_a_trainer_in_none_of_the_named_files(stagetree: Stagetree, write: Write) -> None:
    """It said that another file can be named."""
    said = stagetree("preview", write(grid("preview", trainer="toi")), "--trainers", TOYS[0])
    assert said.code == 2 and "trainer: is in none of the files that are named" in said.err
    assert "did you mean toy?" in said.err


LOOP = """import stagetree

run = stagetree.attach("owned", width=3)
for step, hp in run.steps():
    print(hp["lr"])
"""


READER = """
from stagetree import Trainer

class Reader(Trainer):
    name = "reader"
    def __init__(self, *, seed, device, data, where="."):
        self.words = [each.split() for each in (open("words.txt"), open(data), open("gone.csv"))]
"""


def test_preview_names_undeclared_inputs(
    stagetree: Stagetree, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial of a file that was changed since was given the results of the file before, and nothing said so."""
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    (here / "reader.py").write_text(READER)
    for name in ("words.txt", "train.csv"):
        (here / name).touch()
    study = grid("reads", trainer="reader", trainer_args={"data": ["../here/train.csv", "no file \0"]})
    study["runtime_args"] = {"where": "."}
    named = ("--trainers", "reader.py", "-o", "json")
    said = stagetree("preview", write(study), *named)
    words = "`inputs` does not name ../here/train.csv (trainer_args.data), words.txt (reader.py, line 7): if such"
    assert [each for each in said.json["advice"] if each.startswith(words)]
    said = stagetree("preview", write(study | {"inputs": [str(here / "train.csv"), str(here / "words.txt")]}), *named)
    assert not [each for each in said.json["advice"] if "inputs" in each]
    said = stagetree("preview", write(study | {"inputs": [str(here / "train.csv"), "gone.csv"]}), *named)
    gone = f"not on this machine: {tmp_path / 'gone.csv'} (inputs[1]); `run` refuses the study here"
    assert gone in said.json["advice"]


def test_preview_checks_the_names_that_a_script_reads(stagetree: Stagetree, write: Write, tmp_path: Path) -> None:
    """It did not look into scripts: misspelt names showed up when they ran."""
    (tmp_path / "owned.py").write_text(LOOP)
    named = ("--trainers", str(tmp_path / "owned.py"))
    said = stagetree("preview", write(grid("preview", trainer="owned", trainer_args={"wdith": 4})), *named)
    words = "trainer_args.wdith: is no argument of trainer 'owned': there are width; did you mean width?"
    assert said.code == 2 and words in said.err
    space = {"lr": [0.1, 0.2], "weight_decay": [0.0, 0.1]}
    written = write(grid("preview", trainer="owned", trainer_args={"width": 4}) | {"space": space})
    said = stagetree("preview", written, *named)
    words = "the script never reads weight_decay, so its values change nothing: it reads lr"
    assert said.code == 0 and f"advice          {words}" in said.out and said.err == ""
    assert words in stagetree("preview", written, *named, "-o", "json").json["advice"]
    listed = {"kind": "trials", "trials": [{"hp": {"lr": 0.1, "weight_decay": 0.1}, "steps": 2}]}
    without_space = grid("listed", trainer="owned", trainer_args={"width": 4}, tuner=listed)
    del without_space["space"]
    said = stagetree("preview", write(without_space), *named)
    assert said.code == 0 and f"advice          {words}" in said.out, "a study that lists its trials has no space"
    (tmp_path / "owned.py").write_text(LOOP.replace('hp["lr"]', "hp").replace("width=3", "**options"))
    said = stagetree("preview", written, *named)
    assert "never reads" not in said.out
    assert said.err == (
        "The arguments of the script were not checked: it gives attach a dict of them\n"
        "Which hyper-parameters the script reads was not checked: its source does not tell, see stagetree check\n"
    )


def test_preview_checks_the_arguments_of_a_named_trainer(stagetree: Stagetree, write: Write, tmp_path: Path) -> None:
    file = tmp_path / "elsewhere" / "mine.py"
    file.parent.mkdir()
    file.write_text("""from stagetree import Trainer


class Mine(Trainer):
    name = "mine"

    def __init__(self, *, seed: int, device: str, width: int = 3) -> None: ...
""")
    spec = grid("preview", trainer="mine", trainer_args={"depth": 3})
    said = stagetree("preview", write(spec), "--trainers", file)
    assert said.code == 2 and "trainer_args.depth: is no argument of trainer 'mine'" in said.err
    spec["trainer_args"] = {"width": 4}
    assert stagetree("preview", write(spec), "--trainers", file).err == ""
    file.write_text("class Mine(")
    assert "mine.py, line 1: " in stagetree("preview", write(spec), "--trainers", file).err


def test_preview_prints_a_study_file_that_shares_more(stagetree: Stagetree, write: Write, tmp_path: Path) -> None:
    lr = {"family": "cosine", "init": 0.1, "min": 0, "period": {"ratio": 1}}
    study = grid("lengths", trainer="not-installed", space={"lr": lr, "max_steps": [100, 200, 400]})
    study["tuner"] = {"kind": "grid"}
    said = stagetree("preview", write(study))
    assert "rewrite         horizon: 458 steps instead of 698, 34% less: lr as wsd: held, and" in said.out
    assert said.out.rstrip().endswith("--rewrite horizon prints the study file")
    rewritten = tmp_path / "shared.yaml"
    rewritten.write_text(stagetree("preview", write(study), "--rewrite", "horizon").out)
    assert stagetree("preview", rewritten, "-o", "json").json["unique"] == 458
    wrong = stagetree("preview", write(study), "--rewrite", "peak")
    assert (wrong.code, wrong.err.splitlines()[-1]) == (2, "stagetree: --rewrite: must be one of horizon, got peak")
    plain = stagetree("preview", write(grid("plain", trainer="not-installed")), "--rewrite", "peak")
    assert plain.code == 2
