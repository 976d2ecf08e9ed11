"""The reference pages are what the code makes them, and they lead to the guide."""

from __future__ import annotations

import re

import pytest
from docs_pages import DOCS

from stagetree.spec import StudySpec
from stagetree.spec.tuners import KINDS
from tools.reference_pages import FIRST, MORE, PAGES, page


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_makes_it(name: str) -> None:
    assert (DOCS / name).read_text() == page(name), "run python -m tools.reference_pages"


def test_every_field_and_tuner_is_on_the_page() -> None:
    text = (DOCS / "study-fields.md").read_text()
    listed = re.findall(r"^\| `(\w+)` \| (?:yes|no) \|", text.partition("## Fields of tuners")[0], re.MULTILINE)
    assert set(listed) == set(StudySpec.model_fields) and listed[: len(FIRST)] == list(FIRST)
    assert set(re.findall(r"^### `(\w+)`$", text, re.MULTILINE)) == set(KINDS)
    assert set(MORE) <= set(listed)


def test_each_meaning_is_given() -> None:
    """A parameter without a description would be an empty cell."""
    for name in PAGES:
        header: list[str] = []
        for line in (DOCS / name).read_text().splitlines():
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            header = header if cells and header else cells
            if "meaning" in header and cells:
                assert cells[header.index("meaning")], f"{name}: {line}"
