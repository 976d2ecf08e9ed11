"""stagetree beside other tools: the page follows from the kept results, and all programs get the same task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import page
from benchmarks.peers.__main__ import command, summary, turns
from benchmarks.peers.environments import HERE, OURS, python_lines
from benchmarks.peers.tasks import CONSTANT, TASKS
from stagetree.spec import StudySpec

ROOT = Path(__file__).resolve().parents[2]
VALUES = {**CONSTANT, "lr": 0.1}


def run(program: str, number: int, **measured: Any) -> dict[str, Any]:
    of_all = {"failed": False, "load": 1.0, "first_step": 1.0, "processor_seconds": 1.0, "evaluations": 1, "steps": 9}
    of_one = {"task": "asha", "program": program, "round": number, "slot_seconds": 8.0, "best": 0.1}
    return of_all | of_one | measured


def test_the_page_is_made_of_what_was_kept() -> None:
    kept = json.loads((HERE / "results.json").read_text())
    assert page.text_of(kept) == (ROOT / "docs" / "peers.md").read_text(), "run python -m benchmarks.peers.page"


def test_a_page_of_one_task_says_that_the_others_were_left_out() -> None:
    kept = json.loads((HERE / "results.json").read_text())
    text = page.text_of(kept | {"runs": [each for each in kept["runs"] if each["task"] == "ladder"]})
    assert text.count("It was left out of this run.") == 2 and " of the ladder. A" in " ".join(text.split())


def test_a_peer_that_is_faster_is_named() -> None:
    runs = [run(OURS, 0, wall=20.0, to_target=18.0), run("optuna", 0, wall=10.0, to_target=9.0)]
    assert "**The time to the end**, stagetree's being 1: Optuna on ASHA (0.50 times)" in page.wins(runs)
    assert (
        "**Optuna was first**: times stagetree's wall in the same rounds, Optuna 0.5, stagetree 1.0."
        in page.first_of(runs, "asha")
    )


def test_times_are_of_the_same_round_and_a_failed_run_has_none() -> None:
    runs = [run(OURS, 0, wall=10.0), run("neps", 0, wall=20.0), run(OURS, 1, wall=100.0), run("neps", 1, wall=300.0)]
    assert page.times(runs, "asha", "neps", "wall") == 2.5
    assert page.times([*runs[:3], runs[3] | {"failed": True}], "asha", "neps", "wall") == 2.0


def test_a_machine_that_is_not_quiet_is_said() -> None:
    quiet = [run(OURS, number, task="grid", wall=wall) for number, wall in enumerate((10.0, 25.0))]
    assert page.quiet_or_not(quiet).startswith("The load of the machine, these runs included, was 1.0 to 1.0")
    assert "up to 2.5 times as long" in page.quiet_or_not([quiet[0] | {"load": 6.0}, quiet[1]])


def test_a_program_that_failed_is_named() -> None:
    runs = [run(OURS, 0, wall=1.0, to_target=4.0), run("neps", 0, failed=True), run("neps", 1, failed=True)]
    assert "Failed, and left out: NePS, NePS, once for each" in page.section(runs, "asha")


def test_a_run_that_other_work_held_up_is_no_measurement() -> None:
    runs = [run(OURS, 0, wall=1.0, to_target=4.0), run("neps", 0, wall=9.0, to_target=8.0, slot_seconds=60.0)]
    text = page.section([each | {"processor_seconds": 8.0} for each in runs], "asha")
    assert "Other work held NePS up: of 60 slot seconds the processor worked 8." in text and "stagetree up" not in text


def test_one_round_without_the_target_leaves_no_time_to_it() -> None:
    runs = [run(OURS, 0, wall=1.0, to_target=4.0), run(OURS, 1, wall=1.0, to_target=None)]
    assert page.middle(runs, "to_target") is None
    assert "| 1 of 2 |" in page.section(runs, "asha")


@pytest.mark.parametrize("name", ["ladder", "grid"])
def test_study_and_task_have_the_same_trials(name: str) -> None:
    task = TASKS[name]
    asked = {json.dumps([task.values(config, step) for step in range(task.steps(config))], sort_keys=True)
             for config in task.configurations(0)}  # fmt: skip
    study = set()
    for hp in StudySpec.from_file(HERE / "studies" / f"{name}.yaml").configurations():
        steps = 40 if name == "grid" else next(step for step in range(99) if hp["lr"].at(step) == 0)
        values = [
            {each: hp[each].at(step) for each in ("lr", "momentum", "weight_decay", "bs")} for step in range(steps)
        ]
        study.add(json.dumps(values, sort_keys=True))
    assert study == asked and len(study) == len(task.configurations(0))


def test_asha_begins_with_the_drawn_configurations() -> None:
    words = command(OURS, "python", "asha", "/kept", 3)
    first = next(word for word in words if word.startswith("tuner.first="))
    drawn = [{**config, "bs": 64} for config in TASKS["asha"].configurations(3)]
    assert json.loads(first.removeprefix("tuner.first=")) == drawn and len(drawn) == 48


def test_the_model_resumes_and_writes_what_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.peers.model import Model  # which takes a second: only one process of these tests needs it

    monkeypatch.setenv("PEERS_LOG", str(tmp_path / "log"))
    whole, half, resumed = Model(), Model(), Model()
    whole.train(VALUES), whole.train(VALUES), half.train(VALUES)
    resumed.load_state_dict(half.state_dict())
    resumed.train(VALUES)
    loss = resumed.evaluate()
    assert loss == whole.evaluate()
    found = summary(tmp_path / "log", 0.0)
    assert (found["steps"], found["evaluations"], found["best"]) == (4, 2, loss)


def test_more_rounds_are_counted_on() -> None:
    before = [{"task": "grid", "round": 0}, {"task": "asha", "round": 2}]
    assert list(turns(["grid", "ladder"], 2, before)) == [(1, "grid"), (0, "ladder"), (2, "grid"), (1, "ladder")]
    assert list(turns(["grid", "asha"], None, [])) == [(0, "grid"), (0, "asha"), (1, "asha"), (2, "asha")]


def test_lines_leave_out_what_is_no_code(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    docstring, comment = '"""Two\nlines."""\n\n', "# said\n"
    text, function = (
        'x = """text\nof two"""  # and more\n\n',
        'def f():\n    """Said."""\n    return (\n        x\n    )\n',
    )
    path.write_text(docstring + comment + text + function)
    assert python_lines(path) == 6
