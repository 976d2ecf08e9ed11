"""The shape of the code: files and functions that can be read at once, and folders that say what they hold."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
FILES = sorted(path for folder in ("app", "stagetree") for path in (ROOT / folder).rglob("*.py"))

OTHERS = {"_exit", "_current_frames", "_repr_html_", "_workers"}
"""Private names of other libraries, or such that they have given a meaning."""

LINES_OF_A_FILE = 300
LINES_OF_A_FUNCTION = 40
"""Of its body: signature and docstring grow with what there is to say to those who call it."""


def place(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """The functions of a file, each with the lines of its body that are not empty."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1:2] if ast.get_docstring(node) else node.body
            begin = first[0].lineno - 1 if first else node.end_lineno
            yield node.name, sum(bool(line.strip()) for line in lines[begin : node.end_lineno])


def test_the_code_was_found() -> None:
    assert len(FILES) > 100


def test_no_file_is_long() -> None:
    lengths = {place(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {path: length for path, length in lengths.items() if length > LINES_OF_A_FILE} == {}


def test_no_function_is_long() -> None:
    lengths = {f"{place(path)}:{name}": length for path in FILES for name, length in functions(path)}
    assert {name: length for name, length in lengths.items() if length > LINES_OF_A_FUNCTION} == {}


@pytest.mark.parametrize("folder", sorted({place(path.parent) for path in FILES}))
def test_a_folder_says_what_it_holds(folder: str) -> None:
    init = ROOT / folder / "__init__.py"
    assert init.is_file() and ast.get_docstring(ast.parse(init.read_text(encoding="utf-8")))


def is_private(name: object) -> bool:
    """Also of a dotted name, by its end."""
    last = name.rsplit(".", 1)[-1] if isinstance(name, str) else ""
    return last.startswith("_") and not last.startswith("__") and last not in OTHERS


def private_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where something reaches for the private part of something else, or puts another thing in its place."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and ast.unparse(node.value) not in ("self", "cls"):
            yield node.lineno, ast.unparse(node)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rsplit(".")[-1] in ("setattr", "delattr", "patch"):
            patched = [argument.value for argument in node.args[:2] if isinstance(argument, ast.Constant)]
            yield from ((node.lineno, str(name)) for name in patched if is_private(name))


def test_private_names_are_found() -> None:
    text = "m.setattr(frontier, '_needs', 1)\nm.setattr('a._b', 1)\nplan._held = 2\nself._mine = os._exit\nm.__dict__"
    assert [name for _, name in private_names(ast.parse(text))] == ["_needs", "a._b", "plan._held"]


def test_no_two_files_of_tests_have_one_name() -> None:
    """Their folders are no packages: pytest would take the one for the other where it runs both."""
    names = Counter(path.name for path in TESTS if path.name not in ("conftest.py", "__init__.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_test_patches_or_reads_a_private_name() -> None:
    found = {place(path): list(private_names(ast.parse(path.read_text(encoding="utf-8")))) for path in TESTS}
    assert {path: names for path, names in found.items() if names} == {}
