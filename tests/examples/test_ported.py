"""Original scripts and their ports to trainers: few lines differ, and results are equal bit for bit."""

from __future__ import annotations

import re
from difflib import ndiff
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
MOST_LINES = 15


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in EXAMPLES.glob("*/before.py")))
def test_few_lines_make_a_script_a_trainer(folder: str) -> None:
    """New and changed lines; blank and deleted ones do not count."""
    before, after = ((EXAMPLES / folder / name).read_text().splitlines() for name in ("before.py", "train.py"))
    new = [line for line in ndiff(before, after) if line.startswith("+ ") and line[2:].strip()]
    assert 0 < len(new) <= MOST_LINES, "\n".join(new)


def test_the_page_shows_lines_of_the_examples() -> None:
    """Its blocks are parts of scripts that need a model: the training line of each occurs in an example."""
    blocks = re.findall("```python\n(.*?)```", (EXAMPLES.parent / "docs/adapters.md").read_text(), re.DOTALL)
    texts = [path.read_text() for path in EXAMPLES.glob("*/*.py")]
    for block in blocks:
        compile(block, "adapters.md", "exec")
    calls = [line.split("  #")[0] for block in blocks for line in block.splitlines() if "  # instead of" in line]
    assert len(calls) == 3
    for call in calls:
        start = call.partition("x, y")[0]
        assert any(start in text for text in texts), call
