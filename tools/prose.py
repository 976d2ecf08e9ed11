"""Whether code and guide are written as engineers write them: `python -m tools.prose`, a part of `make check`.

Each rule is a turn of phrase to be avoided, with what to write in its place. Sentences from before the rules are still
there, so each rule has a bound, the number of its places today: it may only fall. `--places RULE` lists them.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("app", "stagetree")


@dataclass(frozen=True)
class Rule:
    """A turn of phrase. instead: what to write. most: how many places have it at most."""

    pattern: str
    instead: str
    most: int

    def places(self, texts: list[tuple[str, int, str]]) -> Iterator[str]:
        """Each line that has it, as "file:line: text"."""
        wanted = re.compile(self.pattern)
        yield from (f"{file}:{line}: {text.strip()}" for file, line, text in texts if wanted.search(text))


RULES = {
    "headless": Rule(r"\b([Ww]hoever|[Ww]hatever|[Ww]homever)\b", "the noun: the worker, the caller, any error", 180),
    "nobody": Rule(r"\b[Nn]obody\b", "no worker, no caller, no study", 128),
    "what-is": Rule(
        r"\b[Ww]hat (is|was|are|were|has|have|it|they)\b", "the noun: the result, the state, the rows", 601
    ),
    "who": Rule(r"(?<!those )\b[Ww]ho (is|was|are|has|have|asks|waits|comes)\b", "the noun: the caller, the study", 3),
    "by-now": Rule(r"\b[Bb]y (now|then)\b", "already; at that point", 3),
    "so-many": Rule(r"\b[Ss]o (many|long|much|often) [a-z]+ at (most|least)\b", "at most N", 0),
    "for-ever": Rule(r"\bfor ever\b", "forever, or without a limit", 0),
    "is-to": Rule(r"\b(is|are|was|were) to (be|end|begin|have|go)\b", "must, will, or the plain verb", 0),
    "those": Rule(r"\b[Tt]hose (that|of|which|who)\b", "the noun once more", 191),
    "one": Rule(r"\b(is|are) (none|one) (of|that)\b", "the noun once more", 21),
    "it-is-that": Rule(r"\b[Ii]t is (for|said|known|found|told|asked)\b", "subject and verb: the caller tells", 39),
}


PAGES = {
    "percentile": Rule(r"\b(for )?9\d(\.\d)? of 100\b", "at p99", 0),
    "to-the-bit": Rule(r"\bto the bit\b(?!`)", "bit for bit", 0),
    "as-the-system": Rule(r"\bas the system\b", "like the system's setting", 0),
    "as-many-as-it-has": Rule(r"\b[Ss]o many [a-z]+ as\b", "as many", 0),
}
"""Riddles that the guide is free of; decisions and the changelog, which are records, are left as they were written."""


def pages() -> list[tuple[str, int, str]]:
    """The lines of the guide and the README."""
    files = [
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs" / "tuners").glob("*.md")),
    ]
    lines = ((path, number, text) for path in files for number, text in enumerate(path.read_text().splitlines(), 1))
    return [(str(path.relative_to(ROOT)), number, text) for path, number, text in lines]


def texts() -> list[tuple[str, int, str]]:
    """The lines of all comments and docstrings: file, number of the line, text."""
    files = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return [(str(path.relative_to(ROOT)), line, text) for path in files for line, text in prose(path.read_text())]


def prose(source: str) -> Iterator[tuple[int, str]]:
    """The lines of a source file's comments, and of the strings that stand by themselves."""
    before = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
        elif token.type == tokenize.STRING and before in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            yield from enumerate(token.string.splitlines(), token.start[0])
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            before = token.type


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--places", metavar="RULE", choices=RULES | PAGES, help="list the places of one rule")
    asked, code, guide = parser.parse_args().places, texts(), pages()
    places = {name: [*rule.places(code)] for name, rule in RULES.items()}
    places |= {name: [*rule.places(guide)] for name, rule in PAGES.items()}
    if asked is not None:
        print(*places[asked], sep="\n")
        return
    rules = RULES | PAGES
    over = {name: lines for name, lines in places.items() if len(lines) > rules[name].most}
    for name, lines in over.items():
        print(f"{name}: in {len(lines)} places, {rules[name].most} may be; write {rules[name].instead}")
        print(f"  python -m tools.prose --places {name}")
    sys.exit(bool(over))


if __name__ == "__main__":
    main()
