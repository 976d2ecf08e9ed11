"""The programs on the pages about Python run as they are written, each by itself, in an empty folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from docs_pages import DOCS, blocks

PAGES = ["sdk.md", "coming-from-optuna.md", "coming-from-ray-tune.md", "coming-from-wandb.md"]
PROGRAMS = [
    (page, number, block.text)
    for page in PAGES
    for number, block in enumerate(blocks(DOCS / page))
    if block.language == "python" and 'trainer="digits", metric' not in block.text  # those need a server: tests/e2e
]


@pytest.mark.slow
@pytest.mark.parametrize(("page", "number", "text"), PROGRAMS, ids=[f"{page}-{n}" for page, n, _ in PROGRAMS])
def test_a_program(page: str, number: int, text: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(text)
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_reference_has_every_public_name() -> None:
    import stagetree

    text = (DOCS / "reference.md").read_text() + (DOCS / "sequences.md").read_text()
    described = {name for name in stagetree.__all__ if f"stagetree.{name}\n" in text}
    assert {"Study", "AsyncStudy", "Client", "AsyncClient", "local", "Space", "when", "Results"} <= described
