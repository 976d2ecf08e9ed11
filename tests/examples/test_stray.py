"""No attribute of a trainer that ships with stagetree is named as one that does not come back with the state."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stagetree.runtime import attributes, state_format
from stagetree.runtime.loading import load_trainer
from stagetree.runtime.model import HpTimeline, Model
from stagetree.spec import StudySpec

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = {"digits": {}, "charlm": {"batches_per_step": 2}}
"""What a trainer keeps is no other after few batches."""


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["digits", "charlm"])
def test_what_examples_keep_comes_back(folder: str) -> None:
    spec = StudySpec.from_file(EXAMPLES / folder / "study.yaml", limits=None)
    kind = load_trainer(str(EXAMPLES / folder / "trainer.py"), spec.trainer)
    hp = {name: each.to_json() for name, each in next(spec.configurations()).items()}
    model, timeline = Model.build(kind, {**spec.trainer_args, **SMALL[folder]}, spec.seed, "cpu"), HpTimeline(hp)
    model.advance(timeline)
    (fd, _), first = model.save(), attributes.of_trainer(model.trainer)
    model.advance(timeline)
    model.load(state_format.read(fd), timeline, 1)
    os.close(fd)
    assert attributes.differing(first, attributes.of_trainer(model.trainer)) == []
