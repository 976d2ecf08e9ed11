"""The commands of tutorials and recipes, run in an empty folder, print the output that the pages show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from docs_pages import DOCS, blocks
from page_reader import Reader

pytestmark = pytest.mark.slow


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


def test_write_a_space(reader: Reader) -> None:
    printed = reader.do("write-a-space.md")
    shown = [block.text for block in blocks(DOCS / "write-a-space.md") if block.language == "text"]
    assert len(shown) == 4 and all(text in printed for text in shown)
    assert printed.count("the same, bit for bit") == 3


def test_asha_with_a_model_of_ones_own(reader: Reader) -> None:
    printed = reader.do("asha-tutorial.md")
    [steps] = re.findall(r"^steps +63 that the trials take, (\d+) unique: merge rate 2", printed, re.MULTILINE)
    assert int(steps) < 63 and "are promoted" in printed and "identical: " in printed
    loaded = float(re.findall(r"^\{'val_accuracy': ([\d.]+)", printed, re.MULTILINE)[0])
    best = float(re.findall(r"^Best: trial \d+, val_accuracy ([\d.]+) .* 27 results", printed, re.MULTILINE)[0])
    assert loaded == pytest.approx(best, abs=1e-6)  # the weights that were written, loaded and measured again


def test_the_first_rung_costs_a_step_for_each_peak() -> None:
    assert "So the first rung costs three steps, not 27." in (DOCS / "asha-tutorial.md").read_text()


def test_recipes(reader: Reader) -> None:
    printed = reader.do("recipes.md")
    assert "4 Pareto-optimal trials" in printed and "12 known from other studies = 12 run" in printed
    assert "begins  from pretrained.safetensors" in printed and printed.count("the lowest of 4 results") == 1
