"""The guide's first pages: their previews, the messages that they name, the program of the home page, their order."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from docs_pages import DOCS, ROOT, Block, blocks, rows

from app.simulation.preview import preview
from stagetree.spec import StudySpec
from tools.prose import GUIDE, LONGEST, guide_lines, interface_lines, long_sentences, source_files

TABLES = ("message", "what you see")
SOURCES = "\n".join(
    path.read_text() for package in ("app", "stagetree") for path in sorted((ROOT / package).rglob("*.py"))
)
OTHERS = ("ModuleNotFoundError", "does not have a deterministic implementation")
"""Messages of Python and torch."""


def messages() -> list[str]:
    """The parts in code of the first cells of the tables of messages, cut where something stands for another."""
    page = DOCS / "troubleshooting.md"
    cells = [row[0] for table in TABLES for row in rows(page, table)]
    return [part for cell in cells for code in re.findall(r"`([^`]+)`", cell) for part in code.split(" ... ")]


def spoken(source: str) -> str:
    """Source with the strings of a call put together, as they are printed."""
    return re.sub(r'"\s*\n\s*f?"', "", source)


def test_every_message_is_one_that_the_product_prints() -> None:
    said = spoken(SOURCES)
    assert len(messages()) > 40
    missing = [message for message in messages() if message not in said and message not in OTHERS]
    assert not missing


@pytest.mark.slow
def test_the_preview_of_a_space_that_shares(tmp_path: Path) -> None:
    studies = [block for block in blocks(DOCS / "sharing.md") if block.file]
    whole, rewrite = [block.text for block in blocks(DOCS / "sharing.md") if block.language == "text"]
    printed = [preview_of(study, tmp_path) for study in studies]
    assert printed[0].startswith(whole)
    assert " ".join(rewrite.split()) in " ".join(printed[1].split())  # a terminal wraps it


def preview_of(study: Block, folder: Path) -> str:
    assert study.file is not None
    (folder / study.file).write_text(study.text)
    command = [sys.executable, "-m", "stagetree", "preview", study.file]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=True).stdout


@pytest.mark.parametrize(("file", "page"), [("decay", "which-decay.md"), ("trunk", "which-decay.md")])
def test_a_problem_is_as_large_as_its_page_says(file: str, page: str) -> None:
    path = ROOT / "examples" / "charlm" / f"{file}.yaml"
    found = preview(StudySpec.from_file(path), slots=2)
    for text in ((DOCS / page).read_text(), path.read_text()):
        assert f"{found['requested']} steps" in text and f"{found['unique']}" in text


@pytest.mark.slow
def test_the_home_page_has_a_program_that_runs(tmp_path: Path) -> None:
    [program] = [block.text for block in blocks(DOCS / "index.md") if block.language == "python"]
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0 and done.stdout.startswith("trial 1, loss 0.00"), done.stderr


def test_questions_come_first_and_records_last() -> None:
    captions = re.findall(r"^:caption: (.*)$", (DOCS / "index.md").read_text(), re.MULTILINE)
    assert (captions[0], captions[-1]) == ("Begin", "Records")


def test_what_the_glossary_rules_out_is_found() -> None:
    ruled_out = {row[2] for row in rows(DOCS / "glossary.md", "verb")} - {""}
    assert len(ruled_out) >= 4
    for words in ruled_out:
        assert any(re.search(rule.pattern, words) for rule in GUIDE.values()), words


def test_english_of_all_python_is_checked() -> None:
    folders = {path.relative_to(ROOT).parts[0] for path in source_files()}
    assert folders == {"app", "stagetree", "tests", "tools", "benchmarks", "examples", "migrations"}


def test_what_users_see_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = {(file, text.strip()) for file, _, text in [*guide_lines(), *interface_lines()]}
    assert ("app/page/src/views/study_actions.tsx", "<p>It resumes from its last state.</p>") in lines
    assert any(file == "app/cli/study_actions.py" and "Resume a paused study" in text for file, text in lines)
    page = tmp_path / "docs" / "long.md"
    (tmp_path / "docs" / "tuners").mkdir(parents=True)
    (tmp_path / "README.md").write_text("Short. " * LONGEST)
    page.write_text(f"One. {'word ' * LONGEST}too many.")
    monkeypatch.setattr("tools.prose.ROOT", tmp_path)
    assert [each.split(":")[0] for each in long_sentences()] == ["docs/long.md"]
