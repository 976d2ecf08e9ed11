"""An error in the user's code fails its own trial, with its traceback, and no other trial."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from stacks import Json, Service, running_service
from toys import grid, switch, trials

KINDS = {
    "raise": ("exception", 'ValueError: the loss went through the roof"'),
    "memory": ("out_of_memory", "MemoryError: no room"),
    "gpu_memory": ("out_of_memory", "CUDA out of memory"),
    "leave": ("exception", "SystemExit: I quit"),
    "nan": ("nan", "score is not a finite number after step 5"),
    "silent": ("metric", "score"),
    "absurd": ("exception", "TypeError: evaluate must return a dict of numbers, got str"),
    "verbose": ("exception", "ValueError: evaluate must return at most 1,000 metrics, got 2,000"),
    "unsavable": ("exception", "a state holds tensors, arrays, bytes, text and numbers"),
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A stack for these tests alone: a slot with many failures gets no work for a while."""
    with running_service(tmp_path_factory.mktemp("failures")) as service:
        yield service


@pytest.fixture(scope="module")
def moody(stack: Service) -> Json:
    """One study with a trial of each mood, which comes at step 4 of 5, among trials that are fine.

    All have reported their metric before: a study whose metric is never heard of ends at its first evaluation.
    """
    moods = [({"mood": switch("fine", mood, 4)}, 5) for mood in ("good", *KINDS, "well")]
    return stack.run(trials("moods", *moods, eval_every=2))


@pytest.mark.slow
@pytest.mark.parametrize("mood", KINDS)
def test_the_trial_fails_with_its_traceback(stack: Service, moody: Json, mood: str) -> None:
    number = 1 + list(KINDS).index(mood)
    trial = stack.client.trial(moody["study"], number)
    kind, text = KINDS[mood]
    assert (trial["state"], trial["value"]) == ("failed", None)
    assert trial["failure"]["kind"] == kind
    assert text.strip('"') in trial["failure"]["error"]
    if kind not in ("nan", "metric"):
        assert "trainers.py" in trial["failure"]["error"] or mood in ("absurd", "verbose", "unsavable")
    assert f"after step {trial['failure']['step']}" in trial["error"]


@pytest.mark.slow
def test_siblings_of_a_failed_trial_continue(moody: Json) -> None:
    states = [trial["state"] for trial in moody["trials"]]
    assert moody["state"] == "completed"
    assert (states[0], states[-1]) == ("completed", "completed")
    assert set(states[1:-1]) == {"failed"}
    assert moody["trials"][0]["value"] == moody["trials"][-1]["value"] == moody["best"]["value"]


def test_a_trial_that_fails_later_leaves_what_was_good(stack: Service) -> None:
    bad = {"mood": switch("fine", "raise", 6)}
    study = stack.run(trials("late-failure", (bad, 10), (bad, 5), ({}, 10), eval_every=2))
    first, second, third = (stack.client.trial(study["study"], number) for number in range(3))
    assert (first["state"], first["failure"]["step"]) == ("failed", 6)
    assert [point["step"] for point in first["curve"]] == [2, 4, 5, 6]
    assert (second["state"], third["state"]) == ("completed", "completed")


def test_a_trainer_that_cannot_be_imported(stack: Service) -> None:
    study = stack.run(grid("import", trainer="unimportable", trainer_args={}))
    assert study["state"] == "failed"
    assert "No module named 'no_such_package'" in stack.client.trial(study["study"], 0)["failure"]["error"]
    assert stack.run(grid("import-after"))["state"] == "completed"
