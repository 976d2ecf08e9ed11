"""The pages of the guide, and what can be read in them: blocks, links, commands, variables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])

BLOCK = re.compile(r"^```(\{?\w*\}?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# ([\w.-]+\.(?:py|yaml|json))\n")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block. `file` is the name in its first line, if that is a comment with one."""

    language: str
    text: str

    @property
    def file(self) -> str | None:
        named = FILE_NAME.match(self.text)
        return named[1] if named else None


def blocks(page: Path) -> list[Block]:
    return [Block(language, text) for language, text in BLOCK.findall(page.read_text())]


def prose(page: Path) -> str:
    """The page without its blocks."""
    return BLOCK.sub("", page.read_text())


def links(page: Path) -> list[str]:
    """The targets of links and pictures, outside blocks and code."""
    return LINK.findall(re.sub(r"`[^`\n]*`", "", prose(page)))


def anchors(page: Path) -> set[str]:
    """What can stand behind the # of a link to the page, as GitHub and the site make it."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(page: Path) -> Iterator[str]:
    """Every `stagetree ...` in code and in shell blocks, one line each."""
    yield from re.findall(r"`(stagetree(?: [^`\n]*)?)`", prose(page))
    for block in blocks(page):
        if block.language in ("sh", "console", ""):
            yield from re.findall(r"^(?:\$ )?(stagetree .*)$", block.text, re.MULTILINE)


def rows(page: Path, first: str) -> list[list[str]]:
    """The cells of the rows of all tables whose header begins with the cell `first`."""
    found: list[list[str]] = []
    for table in re.findall(rf"^\| {re.escape(first)} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", prose(page), re.MULTILINE):
        for line in table.splitlines():
            found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found
