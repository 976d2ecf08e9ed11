"""The study files of the examples are valid, and merge as much as they claim."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

from stagetree.sequences import Sequence, parse
from stagetree.space import Space

EXAMPLES = Path(__file__).parents[2] / "examples"
Trials = Iterable[tuple[dict[str, Sequence], int]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "trials", "requested", "unique"),
    [
        ("digits/study.yaml", 32, 1280, 608),
        ("charlm/study.yaml", 9, 820, 252),
        ("charlm/bf16.yaml", 3, 150, 78),
        ("charlm/mixes.yaml", 4, 240, 120),
        ("charlm/trunk.yaml", 8, 1200, 389),  # each decay once
        ("shapes/study.yaml", 6, 144, 60),
        ("lora/study.yaml", 4, 48, 34),
        ("partial_fit/study.yaml", 8, 240, 140),
        ("script/study.yaml", 6, 360, 206),
        ("program/study.yaml", 6, 360, 206),
        ("nanogpt/study.yaml", 4, 200, 138),
        ("titan/study.yaml", 2, 100, 69),
        ("trl/study.yaml", 4, 100, 66),
        ("trl/dpo.yaml", 4, 100, 66),
        ("lightning_cli/study.yaml", 4, 28, 18),
        ("keras/study.yaml", 4, 28, 18),
        ("ema/study.yaml", 4, 28, 18),
        ("reinforce/study.yaml", 12, 480, 240),
        ("cifar10/resnet56.yaml", 448, 53760, 21752),
        ("cifar10/mobilenetv2.yaml", 240, 28800, 9035),
    ],
)
def test_merge_rates(file: str, trials: int, requested: int, unique: int) -> None:
    asked = list(trials_of(EXAMPLES / file))
    assert (len(asked), *count_steps(asked)) == (trials, requested, unique)


def trials_of(file: Path) -> Trials:
    """As a grid, also where the tuner would stop most of them early."""
    study = yaml.safe_load(file.read_text())
    if study["tuner"]["kind"] == "trials":
        for trial in study["tuner"]["trials"]:
            yield {name: parse(value) for name, value in trial["hp"].items()}, trial["steps"]
    else:
        steps = study["tuner"].get("max_steps")
        space = Space(study["space"], study.get("where"), steps, has_lengths=steps is None)
        for configuration in space.grid():
            yield space.drop_length(configuration), steps or space.length_of(configuration) or 0


def count_steps(trials: Trials) -> tuple[int, int]:
    """All steps, and the unique ones, by brute force."""
    requested, beginnings = 0, set()
    for hp, steps in trials:
        beginning: int = 0
        for step in range(steps):
            beginning = hash((beginning, *(hp[name].at(step) for name in sorted(hp))))
            beginnings.add((step, beginning))
        requested += steps
    return requested, len(beginnings)
