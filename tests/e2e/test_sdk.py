"""The guide to tuning from Python, done as it says: its programs run against the service in real processes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from stacks import Service

PAGE = Path(__file__).parents[2] / "docs" / "sdk.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)[1:]
"""But for the first, which has a service of its own: tests/docs runs it."""


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program_of_the_guide(
    stack: Service, number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STAGETREE_URL", stack.url)
    known = {study["study"] for study in stack.client.studies()}
    program = PROGRAMS[number].replace('"digits"', f'"toy", trainer_args={{"tag": "sdk{number}"}}')
    exec(compile(program.replace("val_accuracy", "score"), f"{PAGE.name}[{number}]", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()
    [new] = [study["study"] for study in stack.client.studies() if study["study"] not in known]
    shown = stack.client.study(new)
    assert shown["state"] == "completed"
    assert shown["steps"]["executed"] == shown["steps"]["unique"]
    assert all(trial["state"] == "completed" for trial in shown["trials"])


def test_the_example_tuner_has_its_stated_effect(stack: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """8 trials for 5 steps, of which the better 4 are trained on to 10."""
    from stagetree import Space, Study

    names: dict[str, type] = {}
    exec(PROGRAMS[2].replace("asyncio.run(main())", ""), names)
    tuner = names["EarlyStopTuner"]([(5, 8), (10, 4)], Space({"lr": {"uniform": [0.1, 0.2]}}))
    fields = {"name": "figure", "trainer": "toy", "trainer_args": {"tag": "figure"}, "metric": "score", "mode": "min"}
    with Study.create(fields, url=stack.url) as study:
        best, _ = study.run(tuner)
        study.complete()
    trials = stack.client.study(study.id)["trials"]
    assert [trial["steps"] for trial in trials].count(10) == 4
    at_five = {n: stack.client.trial(study.id, n)["curve"][0]["metrics"]["score"] for n in range(8)}
    promoted = sorted(at_five, key=lambda n: (at_five[n], n))[:4]
    assert sorted(promoted) == [trial["trial"] for trial in trials if trial["steps"] == 10]
    assert best.value == min(trial["value"] for trial in trials if trial["steps"] == 10)
