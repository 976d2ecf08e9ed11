"""`llms.txt` and `llms-full.txt` are made of the guide as it is: each page, in its order."""

from __future__ import annotations

import re
from pathlib import Path

from docs_pages import DOCS

from tools import llms


def test_every_page_is_listed_with_a_sentence(tmp_path: Path) -> None:
    llms.write(tmp_path)
    listed = re.findall(r"^- \[(.+)\]\((.*)\.html\): (.+)$", (tmp_path / "llms.txt").read_text(), re.MULTILINE)
    names = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md")} - {"index"}
    assert {name for _, name, _ in listed} == names and len(listed) == len(names)
    assert all(title and summary for title, _, summary in listed)


def test_the_whole_guide_has_every_task_and_no_table_of_contents(tmp_path: Path) -> None:
    llms.write(tmp_path)
    text = (tmp_path / "llms-full.txt").read_text()
    assert "# First hour\n" in text and "# Who may do what\n" in text and "{toctree}" not in text
