"""The page of measurements is what its script writes, and each figure is one number with its circumstances."""

from __future__ import annotations

import importlib
from collections import Counter
from datetime import date

import pytest
from docs_pages import rows

from tools.measurements import MACHINES, PAGE, Figure, figures, page


def test_the_page_is_what_the_script_writes() -> None:
    assert PAGE.read_text() == page(figures()), "run python -m tools.measurements"


def test_each_figure_is_a_row_of_one_number_with_its_circumstances() -> None:
    for figure in figures():
        assert isinstance(figure.value, int | float) and figure.unit and figure.what and figure.command, figure
        assert figure.machine in MACHINES and date.fromisoformat(figure.date) and len(figure.commit) >= 7, figure
        assert not any("|" in str(getattr(figure, name)) for name in Figure.__dataclass_fields__), figure
    table = rows(PAGE, "what")
    assert Counter(cells[0] for cells in table) == Counter(figure.what for figure in figures())


def test_a_large_value_is_readable() -> None:
    figure = Figure("s", "w", 41394, "steps", "", "", "c", "cpu", "0123456", "2026-01-01")
    assert figure.row().startswith("| w | 41,394 | steps |")


def test_the_table_of_samplers_is_what_its_script_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # it would set it for all tests
    monkeypatch.syspath_prepend(str(PAGE.parents[1] / "benchmarks"))
    table = importlib.import_module("search").table()
    assert table in (PAGE.parent / "samplers.md").read_text(), "run python benchmarks/search.py --table"
