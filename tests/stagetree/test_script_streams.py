"""Streams of a script, and the variables that it keeps beside its state."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from built_models import image
from walking_scripts import DRAWING, HP, LOOP, SCRIPT, train_walk

from stagetree import attach
from stagetree.runtime.checkpoints import state_format
from stagetree.runtime.exactness.held_values import differing_names, digest_held_values
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.loading import code_modules
from stagetree.runtime.model import HpTimeline, Model

ROOT = Path(__file__).parents[2]

STREAMING = f"""
import random
import stagetree

class Numbers:
    place = 0

    def __iter__(self):
        while self.place < 5:
            self.place += 1
            yield self.place + random.random()
        self.place = 0

    def state_dict(self):
        return {{"place": self.place}}

    def load_state_dict(self, state):
        self.place = state["place"]

run = stagetree.attach("walk", hp={{"lr": 0.5}}, steps=7)
numbers = run.stream(Numbers())
where = 0.0
{LOOP}    where += hp["lr"] * next(numbers) * random.random()
"""


MIXING = STREAMING.replace("run.stream(Numbers())", 'run.stream({"a": Numbers(), "b": Numbers()})').replace(
    "    where +=", '    numbers.mix("a" if step < 4 else "a:0.25,b:0.75")\n    where +='
)


@pytest.mark.parametrize("broken", [1, 5, 6])
@pytest.mark.parametrize("script", [STREAMING, MIXING], ids=["stream", "mix"])
def test_the_place_in_a_stream_goes_with_the_state(build: Any, script: str, broken: int) -> None:
    whole, half = train_walk(build(script), 9), train_walk(build(script), broken)
    middle = image(half)
    for other in (build(script), whole):
        end = image(whole)
        other.load(state_format.unpack(middle), HpTimeline(HP), broken)
        assert image(other) == middle and image(train_walk(other, 9)) == end


LOADING = DRAWING.replace("loader = DataLoader(", "batches = run.stream(loader := StatefulDataLoader(").replace(
    "batch_size=2)", "batch_size=2, shuffle=True, generator=torch.Generator()))"
)
LOADING = LOADING.replace(
    "import torch\n", "import torch\nfrom torchdata.stateful_dataloader import StatefulDataLoader\n"
)
LOADING = LOADING.replace("for batch in loader:", "for batch in [next(batches)]:")
QUIET = LOADING.replace("self.rng.normal()", "index")


def held_digests(model: Model) -> dict[str, str]:
    """What the script has beside its state."""
    return digest_held_values(model.trainer, code_modules(str(model.trainer.file)))  # type: ignore[attr-defined]


def stray(model: Model) -> list[str]:
    """The values that do not return with the state of step 2, once the model was trained further."""
    train_walk(model, 2)
    middle, before = image(model), held_digests(model)
    train_walk(model, 5).load(state_format.unpack(middle), HpTimeline(HP), 2)
    return differing_names(before, held_digests(model))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (STREAMING, []),
        (MIXING, []),
        (QUIET, []),
        (STREAMING.replace("run.stream(Numbers())", "iter(own := Numbers())"), ["own.place", "numbers"]),
    ],
    ids=["own", "mixed", "loader", "no stream"],
)
def test_the_data_of_a_stream_comes_back(build: Any, text: str, names: list[str]) -> None:
    assert [name.removesuffix(" (a global of walk.py)") for name in stray(build(text))] == [
        name.removesuffix(" (a global of walk.py)") for name in names
    ]


COUNTING = SCRIPT.replace("where = 0.0", "where, seen, last = 0.0, 0, 0").replace(
    "    where +=", "    seen += 1; last += 1\n    where +="
)


@pytest.mark.parametrize(
    ("caches", "names"),
    [("()", ["seen", "last"]), ('"seen"', ["last"]), ('["seen", "last"]', []), ('("last", "elsewhere")', ["seen"])],
)
def test_a_script_may_exclude_variables(build: Any, caches: str, names: list[str]) -> None:
    text = COUNTING.replace("scale=1.0", f"scale=1.0, caches={caches}")
    assert stray(build(text)) == [f"{name} (a global of walk.py)" for name in names]


def test_excluded_variables_are_given_by_name(build: Any) -> None:
    with pytest.raises(ValueError, match='caches: the names of variables, such as "last_batch", not a float'):
        attach("walk", caches=[1.0])  # type: ignore[list-item]
    with pytest.raises(TrainerFailed, match="caches: the names of variables"):
        build(SCRIPT.replace("scale=1.0", "scale=1.0, caches=[random]"))


@pytest.mark.slow
def test_a_script_with_a_stream_trains_by_hand(tmp_path: Path) -> None:
    (tmp_path / "walk.py").write_text(STREAMING)
    done = subprocess.run(
        [sys.executable, "walk.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True
    )
    assert done.returncode == 0 and b"step 7: where" in done.stdout, done.stderr
