"""Scripts as their authors wrote them, and as trainers of studies: few lines differ, and the bits are the same."""

from __future__ import annotations

from difflib import ndiff
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
MOST_LINES = 15


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in EXAMPLES.glob("*/before.py")))
def test_few_lines_make_a_script_a_trainer(folder: str) -> None:
    """Lines that are new, or not what they were; blank ones, and those that only went away, are not counted."""
    before, after = ((EXAMPLES / folder / name).read_text().splitlines() for name in ("before.py", "train.py"))
    new = [line for line in ndiff(before, after) if line.startswith("+ ") and line[2:].strip()]
    assert 0 < len(new) <= MOST_LINES, "\n".join(new)
