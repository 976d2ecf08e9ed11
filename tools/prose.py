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


GUIDE = {
    "percentile": Rule(r"\b(for )?9\d(\.\d)? of 100\b", "at p99", 0),
    "to-the-bit": Rule(r"\bto the bit\b(?!`)", "bit for bit", 0),
    "as-the-system": Rule(r"\bas the system\b", "like the system's setting", 0),
    "as-many-as-it-has": Rule(r"\b[Ss]o many [a-z]+ as\b", "as many", 0),
    "nobody-at-all": Rule(r"\b[Nn]obody\b", "no worker, no study, not trained", 0),
    "whoever-it-is": Rule(r"\b[Ww]hoever\b", "the noun: the caller, the program", 0),
    "foretell": Rule(r"\b[Ff]oret(old|ell)\b(?!`)", "predict", 0),
    "hardly": Rule(r"\b[Hh]ardly\b", "unlikely to, almost no", 0),
    "go-on": Rule(r"\b([Gg]o|[Gg]oes|[Gg]oing|[Gg]one|[Ww]ent) on\b", "resume, be promoted, continue, run", 0),
    "came-to": Rule(r"\b[Cc]ame to\b", "reached, had", 0),
}
"""Riddles, and verbs that stand for several of those in `docs/glossary.md`: not in the guide, the README and what users
see of the command line and the page. Decisions and the changelog are records, and are left as they were written."""

LONGEST = 40
"""Words of a sentence of the guide, up to a full stop, a colon or a semicolon; a table's cell is one of its own."""


def pages() -> list[tuple[str, int, str]]:
    """The lines of the guide and the README; the glossary names what is not to be used."""
    lines = ((path, number, text) for path in guide() for number, text in enumerate(path.read_text().splitlines(), 1))
    return [(str(path.relative_to(ROOT)), number, text) for path, number, text in lines if path.stem != "glossary"]


def guide() -> list[Path]:
    """The pages of the guide, and the README."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "tuners").glob("*.md"))]


def seen() -> Iterator[tuple[str, int, str]]:
    """What users see of the command line and the page: strings, help, and the text between the tags."""
    for path in sorted((ROOT / "app" / "cli").glob("*.py")):
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            if token.type == tokenize.STRING and not is_inner(token.string):
                lines = enumerate(token.string.splitlines(), token.start[0])
                yield from ((str(path.relative_to(ROOT)), number, text) for number, text in lines)
    for path in sorted((ROOT / "app" / "page" / "src").rglob("*.ts*")):
        if path.name != "api.d.ts":
            source = re.sub(r"/\*.*?\*/", lambda found: "\n" * found[0].count("\n"), path.read_text(), flags=re.S)
            lines = enumerate(re.sub(r"(?m)(?<!:)//.*$", "", source).splitlines(), 1)
            yield from ((str(path.relative_to(ROOT)), number, text) for number, text in lines)


def is_inner(string: str) -> bool:
    """Whether a string is the docstring of a function that is no command: users do not see it."""
    return string.startswith('"""') and "Example:" not in string


def long_sentences() -> Iterator[str]:
    """The sentences of the guide that have more than `LONGEST` words."""
    for path in guide():
        text = re.sub(r"(?ms)^```.*?^```$", "", path.read_text())
        text = re.sub(r"`[^`]*`", "x", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text))
        for part in re.split(r"\n\s*\n|\n(?=[-|#>]|\d+\. )|\|", text):
            for sentence in re.split(r"(?<=[.!?:;])\s", part):
                if len(sentence.split()) > LONGEST:
                    yield f"{path.relative_to(ROOT)}: {' '.join(sentence.split())[:100]} ..."


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
    parser.add_argument("--places", metavar="RULE", choices=RULES | GUIDE, help="list the places of one rule")
    asked, code, shown = parser.parse_args().places, texts(), [*pages(), *seen()]
    places = {name: [*rule.places(code)] for name, rule in RULES.items()}
    places |= {name: [*rule.places(shown)] for name, rule in GUIDE.items()}
    if asked is not None:
        print(*places[asked], sep="\n")
        return
    rules, long = RULES | GUIDE, [*long_sentences()]
    over = {name: lines for name, lines in places.items() if len(lines) > rules[name].most}
    for name, lines in over.items():
        print(f"{name}: in {len(lines)} places, {rules[name].most} may be; write {rules[name].instead}")
        print(f"  python -m tools.prose --places {name}")
    for sentence in long:
        print(f"more than {LONGEST} words: {sentence}")
    sys.exit(bool(over or long))


if __name__ == "__main__":
    main()
