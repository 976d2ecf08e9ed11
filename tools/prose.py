"""Check the English of code and guide: `python -m tools.prose`, a part of `make check`.

Comments, docstrings and messages of all Python may have few of the turns of phrase in `DIALECT`, function names must
not begin with a preposition, and the guide and the command line must have none of `GUIDE`. `--places` lists the lines
of a rule.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("app", "stagetree", "tests", "tools", "benchmarks", "examples", "migrations")
NAMED_PACKAGES = ("app", "stagetree", "tests")
"""Where names of functions are checked, too."""

Line = tuple[str, int, str]
"""File, line number, text."""


@dataclass(frozen=True)
class Rule:
    """A turn of phrase (a regular expression), and what to write instead."""

    pattern: str
    instead: str

    def places(self, lines: list[Line]) -> list[str]:
        """Each occurrence as "file:line: text"."""
        return [f"{file}:{line}: {text.strip()}" for file, line, text in lines for _ in re.finditer(self.pattern, text)]


DIALECT = {
    "what-is": Rule(
        r"\b[Ww]hat (is|was|are|were|has|have|it|they|does|do|did)\b", "the noun: the result, the state, the rows"
    ),
    "whoever": Rule(
        r"\b([Ww]hoever|[Ww]hatever|[Ww]homever|[Ww]herever|[Hh]owever (?:many|much))\b",
        "the noun: the worker, the caller, any error",
    ),
    "nobody": Rule(r"\b([Nn]obody|[Ss]omebody|[Aa]nybody)\b", "no worker, no caller, no study"),
    "those-that": Rule(r"\b[Tt]hose (that|of|which|who|in|with|for)\b", "the noun once more"),
    "so-many": Rule(r"\b[Ss]o (many|long|much|often|few|far)\b(?! as)", "a count, a limit, up to N"),
    "in-place-of": Rule(r"\bin (the|its|their|his) place( of)?\b|\bin place of\b", "instead of, replaces"),
    "goes-on": Rule(r"\b([Gg]o|[Gg]oes|[Gg]oing|[Gg]one|[Ww]ent) on\b", "continues, resumes, is promoted"),
    "is-said": Rule(r"\b(is|are|was|were|be|been) (said|told|asked|known|found)\b", "reports, logs, requests, knows"),
    "who-is": Rule(r"(?<!those )\b[Ww]ho (is|was|are|has|have|asks|waits|comes)\b", "the noun: the caller, the study"),
}
MOST_IN_A_THOUSAND_WORDS = 0.25
"""How many turns of phrase from `DIALECT` a thousand words of comments and strings may have. It may only fall."""

PREPOSITIONS = set(
    """about after against along among at before behind beside between by during for in into like of off over per
    since than through under until up within without""".split()  # noqa: SIM905
)
"""`to_json`, `from_file`, `with_suffix`, `as_posix` and `on_step_begin` are Python's own idioms."""

PUBLIC_NAMES = {"at", "up", "after_step"}
"""Names that users write: `at` of sequences and distributions, `stagetree up`, and `TorchTrainer.after_step`."""

MOST_PREPOSITIONS = 1
"""How many functions and methods may have a name that begins with a preposition. It may only fall; the aim is 0."""

GUIDE = {
    "percentile": Rule(r"\b(for )?9\d(\.\d)? of 100\b", "at p99"),
    "to-the-bit": Rule(r"\bto the bit\b(?!`)", "bit for bit"),
    "as-the-system": Rule(r"\bas the system\b", "like the system's setting"),
    "as-many-as-it-has": Rule(r"\b[Ss]o many [a-z]+ as\b", "as many"),
    "no-worker": Rule(r"\b[Nn]obody\b", "no worker, no study, not trained"),
    "caller": Rule(r"\b[Ww]hoever\b", "the noun: the caller, the program"),
    "foretell": Rule(r"\b[Ff]oret(old|ell)\b(?!`)", "predict"),
    "hardly": Rule(r"\b[Hh]ardly\b", "unlikely to, almost no"),
    "go-on": Rule(r"\b([Gg]o|[Gg]oes|[Gg]oing|[Gg]one|[Ww]ent) on\b", "resume, be promoted, continue, run"),
    "came-to": Rule(r"\b[Cc]ame to\b", "reached, had"),
}
"""Not in the guide, the README, the page or the strings of the command line. Decisions and the changelog are
records and are not checked."""

LONGEST = 40
"""Words of a sentence of the guide, up to a full stop, a colon or a semicolon. Each cell of a table counts as one."""


def guide_files() -> list[Path]:
    """The README and the pages of the guide."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "tuners").glob("*.md"))]


def guide_lines() -> list[Line]:
    """The lines of the guide, without the glossary, which quotes the words to avoid."""
    lines = (
        (path, number, text) for path in guide_files() for number, text in enumerate(path.read_text().splitlines(), 1)
    )
    return [(str(path.relative_to(ROOT)), number, text) for path, number, text in lines if path.stem != "glossary"]


def interface_lines() -> Iterator[Line]:
    """Texts for users in the command line and the page: strings, help, and the text between tags."""
    for path in sorted((ROOT / "app" / "cli").glob("*.py")):
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            if token.type == tokenize.STRING and not is_internal(token.string):
                lines = enumerate(token.string.splitlines(), token.start[0])
                yield from ((str(path.relative_to(ROOT)), number, text) for number, text in lines)
    for path in sorted((ROOT / "app" / "page" / "src").rglob("*.ts*")):
        if path.name != "api.d.ts":
            source = re.sub(r"/\*.*?\*/", lambda found: "\n" * found[0].count("\n"), path.read_text(), flags=re.S)
            lines = enumerate(re.sub(r"(?m)(?<!:)//.*$", "", source).splitlines(), 1)
            yield from ((str(path.relative_to(ROOT)), number, text) for number, text in lines)


def is_internal(string: str) -> bool:
    """Whether a string is a docstring that users do not see: only the help of a command has an example."""
    return string.startswith('"""') and "Example:" not in string


def long_sentences() -> Iterator[str]:
    """The sentences of the guide that have more than `LONGEST` words."""
    for path in guide_files():
        text = re.sub(r"(?ms)^```.*?^```$", "", path.read_text())
        text = re.sub(r"`[^`]*`", "x", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text))
        for part in re.split(r"\n\s*\n|\n(?=[-|#>]|\d+\. )|\|", text):
            for sentence in re.split(r"(?<=[.!?:;])\s", part):
                if len(sentence.split()) > LONGEST:
                    yield f"{path.relative_to(ROOT)}: {' '.join(sentence.split())[:100]} ..."


def source_files(packages: Sequence[str] = PACKAGES) -> list[Path]:
    return sorted(
        path for package in packages for path in (ROOT / package).rglob("*.py") if "node_modules" not in path.parts
    )


def source_lines() -> list[Line]:
    """The lines of all comments, docstrings and other strings."""
    return [(str(path.relative_to(ROOT)), *line) for path in source_files() for line in texts(path.read_text())]


def texts(source: str) -> Iterator[tuple[int, str]]:
    """The lines of a file's comments and strings."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
        elif token.type == tokenize.STRING:
            yield from enumerate(token.string.splitlines(), token.start[0])


def preposition_names() -> Iterator[str]:
    """The functions and methods whose name begins with a preposition."""
    for path in source_files(NAMED_PACKAGES):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name in PUBLIC_NAMES:
                continue
            if node.name.strip("_").split("_")[0] in PREPOSITIONS:
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"


def code_problems(dialect: dict[str, list[str]], words: int, names: list[str]) -> Iterator[str]:
    count = sum(map(len, dialect.values()))
    if 1000 * count > MOST_IN_A_THOUSAND_WORDS * words:
        share = f"{1000 * count / words:.2f} in a thousand words of comments and strings"
        yield f"{count} turns of phrase to avoid, {share}; the limit is {MOST_IN_A_THOUSAND_WORDS}"
        yield from (
            f"  {name}: {len(lines)}; write {DIALECT[name].instead}" for name, lines in dialect.items() if lines
        )
        yield "  python -m tools.prose --places RULE"
    if len(names) > MOST_PREPOSITIONS:
        yield f"{len(names)} function names begin with a preposition; the limit is {MOST_PREPOSITIONS}"
        yield "  python -m tools.prose --places names"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    rules = [*DIALECT, "names", *GUIDE]
    parser.add_argument(
        "--places", metavar="RULE", choices=rules, help=f"list the places of a rule: {', '.join(rules)}"
    )
    rule = parser.parse_args().places
    code, texts, names = source_lines(), [*guide_lines(), *interface_lines()], [*preposition_names()]
    dialect = {name: each.places(code) for name, each in DIALECT.items()}
    guide = {name: each.places(texts) for name, each in GUIDE.items()}
    if rule is not None:
        print(*(dialect | guide | {"names": names})[rule], sep="\n")
        return
    problems = [*code_problems(dialect, sum(len(text.split()) for _, _, text in code), names)]
    problems += [f"{line}\n  write {GUIDE[name].instead}" for name, lines in guide.items() for line in lines]
    problems += [f"more than {LONGEST} words: {sentence}" for sentence in long_sentences()]
    print(*problems, sep="\n", end="\n" if problems else "")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
