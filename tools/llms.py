"""The guide for language models: `python -m tools.llms FOLDER` writes `llms.txt` and `llms-full.txt` there.

`llms.txt` lists the pages of the guide, with the first sentence of each; `llms-full.txt` is their whole text. `make
docs` writes both into the site, so that neither is committed, and none is of another version.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
TREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LEFT_OUT = {"Records"}
"""Measurements and decisions: they interest developers of stagetree."""


@dataclass(frozen=True)
class Page:
    """A page of the guide."""

    section: str
    file: Path

    @property
    def text(self) -> str:
        """The page without its tables of contents."""
        return re.sub(r"\n{3,}", "\n\n", TREE.sub("", self.file.read_text(encoding="utf-8"))).strip()

    @property
    def title(self) -> str:
        return self.text.partition("\n")[0].removeprefix("# ")

    @property
    def summary(self) -> str:
        """The first sentence."""
        parts = self.text.split("\n\n")[1:]
        line = " ".join(next((part for part in parts if part[0] not in "!#|`-<"), "").split())
        return re.split(r"(?<=[.:])\s", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line))[0].rstrip(":")

    @property
    def address(self) -> str:
        return str(self.file.relative_to(DOCS).with_suffix(".html"))


def pages() -> Iterator[Page]:
    """The pages in the order of the guide."""
    for tree in TREE.findall((DOCS / "index.md").read_text(encoding="utf-8")):
        section = re.findall(r"^:caption: (.*)$", tree, re.MULTILINE)[0]
        for name in re.findall(r"^([a-z][\w/-]*)$", tree, re.MULTILINE):
            yield Page(section, DOCS / f"{name}.md")
            if name.endswith("/index"):
                others = sorted((DOCS / name).parent.glob("*.md"))
                yield from (Page(section, other) for other in others if other.stem != "index")


def outline() -> str:
    """The text of `llms.txt`."""
    index = Page("", DOCS / "index.md")
    lines = [f"# {index.title}", "", f"> {index.summary}", "", "The whole guide is in [one file](llms-full.txt)."]
    section = ""
    for page in pages():
        if page.section != section:
            section = page.section
            lines += ["", f"## {'Optional' if section in LEFT_OUT else section}", ""]
        lines.append(f"- [{page.title}]({page.address}): {page.summary}")
    return "\n".join(lines) + "\n"


def whole() -> str:
    """The text of `llms-full.txt`."""
    kept = [Page("", DOCS / "index.md"), *(page for page in pages() if page.section not in LEFT_OUT)]
    return "\n\n\n".join(f"<!-- {page.address} -->\n\n{page.text}" for page in kept) + "\n"


def write(folder: Path) -> None:
    """Write both files."""
    (folder / "llms.txt").write_text(outline(), encoding="utf-8")
    (folder / "llms-full.txt").write_text(whole(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
