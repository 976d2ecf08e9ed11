"""The states of the global random generators."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from stagetree.trainer import generators
from stagetree.trainer.generators import GeneratorStates


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    with generators.preserve("cpu"):
        yield


def draw() -> list[float]:
    """From each generator; an odd number of normal values, of which each generator keeps one for later."""
    return [random.gauss(0, 1), float(np.random.randn()), float(torch.randn(())), random.random(), np.random.rand()]


def test_states_go_through_a_checkpoint() -> None:
    generators.seed(7)
    draw()
    at = generators.state("cpu")
    saved, drawn = at.saved(), draw()
    json.dumps([saved["python"], saved["numpy"][2:]])
    generators.restore(GeneratorStates.from_saved(saved), "cpu")
    assert draw() == drawn
    assert GeneratorStates.from_saved(saved) == at


@pytest.mark.parametrize("draw_once", [random.random, np.random.rand, lambda: torch.rand(())])
def test_states_are_equal_until_something_is_drawn(draw_once: object) -> None:
    at = generators.state("cpu")
    assert generators.are_at(at) and at == generators.state("cpu")
    assert callable(draw_once) and draw_once() is not None
    assert not generators.are_at(at) and at != generators.state("cpu")
    generators.restore(at, "cpu")
    assert generators.are_at(at)
