"""`make docs` builds without a warning, and the built site needs no network."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from docs_pages import DOCS, ROOT

pytestmark = pytest.mark.slow(together=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    line = re.search(r"sphinx-build (.*) docs site", (ROOT / "Makefile").read_text())
    assert line
    command = [sys.executable, "-m", "sphinx", *line[1].split(), "-d", str(folder / "doctrees"), DOCS, folder / "html"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return folder / "html"


class Sources(HTMLParser):
    """What a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        wanted = given.get("href") if tag == "link" else given.get("src")
        if wanted:
            self.found.append(wanted)


def test_every_page_is_there(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        assert (site / page.relative_to(DOCS)).with_suffix(".html").exists(), page


def test_the_guide_for_language_models_leads_to_its_pages(site: Path) -> None:
    outline = (site / "llms.txt").read_text()
    for target in re.findall(r"\]\(([^)]*)\)", outline):
        assert (site / target).exists(), target
    assert (site / "llms-full.txt").stat().st_size > 20 * len(outline)


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        sources = Sources()
        sources.feed(page.read_text())
        for source in sources.found:
            assert "//" not in source, f"{page.name}: {source}"
            if not source.startswith("#"):
                assert (page.parent / source.partition("?")[0]).exists(), f"{page.name}: {source}"


def test_every_sequence_has_its_plot(site: Path) -> None:
    assert len(re.findall(r'<img [^>]*src="_images/\w+\.svg"', (site / "sequences.html").read_text())) == 14
