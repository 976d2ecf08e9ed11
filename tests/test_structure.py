"""The structure of the code: the size of files and functions, their imports, and the subjects of folders."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles
from typing import TypeGuard

import pytest

from tools.shape import ROOT, imports, source_files

TESTS = sorted((ROOT / "tests").rglob("*.py"))
SOURCES = source_files()
FILES = [each.path for each in SOURCES]

OTHERS = {"_exit", "_current_frames", "_repr_html_", "_split_scope", "_workers"}
"""Private names that other libraries define or give a meaning."""

LINES_OF_A_FILE = 600
"""The length at which a file probably has more than one subject."""

LINES_OF_A_BODY, LINES_OF_A_FUNCTION = 40, 50
"""Signature and docstring grow with the number of facts for callers."""

LONG_FUNCTIONS = {"stagetree.trainer.torch_trainer:__init__": 65}
"""Longer than others may be: its arguments are the user's options."""

INTERNAL_IMPORTS = 14
"""A file that needs more of the other files has more than one subject, or is where everything comes together.

One that says where each of its names comes from needs more than one that takes them from a file that hands them on."""

WIDE_FILES = {
    "app.api": 3,
    "app.service": 5,
    "app.cli": 1,
    "app.simulation": 2,
    "app.workers": 5,
    "stagetree": 2,
}
"""The number of files of a folder that import more. It may only fall."""

MEDIAN_IMPORTS, MOST_IMPORTS_OF_95 = 4, 13
"""The imports of a file: the median, and the 95th percentile."""

COMPOSED = {"app.main"}
"""The files that assemble the service and the command line, and import all their parts."""

REPEATED_CLASSES = {
    "End", "FieldError", "Health", "Lane", "Limits", "Logged", "Node", "Note", "Point", "Problem", "Progress",
    "Replay", "Slot", "Stage", "Stop", "Study", "TrainerFileError", "Trial", "Word",
}  # fmt: skip
"""Names of more than one class. None may be added; a name with one class left is removed."""


def place(path: Path) -> str:
    return str(path.relative_to(ROOT))


def room(name: str) -> str:
    """The folder of `app` with a module; all of `stagetree` is one folder."""
    return ".".join(name.split(".")[: 2 if name.startswith("app.") else 1])


def overfull_folders(found: list[str], most: dict[str, int]) -> dict[str, list[str]]:
    """The modules of folders with more modules than allowed."""
    rooms = defaultdict[str, list[str]](list)
    for name in found:
        rooms[room(name)].append(name)
    return {name: modules for name, modules in rooms.items() if len(modules) > most.get(name, 0)}


def test_the_code_was_found() -> None:
    assert len(FILES) > 100


def test_no_file_is_long() -> None:
    lengths = {place(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {path: length for path, length in lengths.items() if length > LINES_OF_A_FILE} == {}


def test_no_function_is_long() -> None:
    found = {f"{file.name}:{each.name}": each for file in SOURCES for each in file.functions()}
    assert {name: each.body for name, each in found.items() if each.body > LINES_OF_A_BODY} == {}
    most = {name: max(LINES_OF_A_FUNCTION, LONG_FUNCTIONS.get(name, 0)) for name in found}
    assert {name: each.lines for name, each in found.items() if each.lines > most[name]} == {}


def test_no_file_imports_many_others() -> None:
    wide = [name for name, found in imports(SOURCES).items() if len(found) > INTERNAL_IMPORTS]
    assert overfull_folders([name for name in wide if name not in COMPOSED], WIDE_FILES) == {}


def test_files_import_few_others() -> None:
    cuts = quantiles([len(found) for found in imports(SOURCES).values()], n=20, method="inclusive")
    assert cuts[9] <= MEDIAN_IMPORTS and cuts[18] <= MOST_IMPORTS_OF_95


def test_modules_named_in_strings_exist() -> None:
    """Modules that are imported by name before a fork: import-linter and mypy do not see them."""
    known = {each.name for each in SOURCES}
    for path in (ROOT / "app" / "workers" / "prefork.py", ROOT / "stagetree" / "runtime" / "warm.py"):
        words = (each.value for each in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if is_text(each))
        named = {word for word in words if re.fullmatch(r"(app|stagetree)(\.\w+)+", word)}
        assert named and named <= known, path


def is_text(node: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_a_public_class_stands_once() -> None:
    names = Counter(name for each in SOURCES for name in each.public_classes())
    assert {name for name, count in names.items() if count > 1} == REPEATED_CLASSES


@pytest.mark.parametrize("folder", sorted({place(path.parent) for path in FILES}))
def test_a_folder_says_what_it_holds(folder: str) -> None:
    init = ROOT / folder / "__init__.py"
    assert init.is_file() and ast.get_docstring(ast.parse(init.read_text(encoding="utf-8")))


def is_private(name: object) -> bool:
    """For a dotted name, by its last part."""
    last = name.rsplit(".", 1)[-1] if isinstance(name, str) else ""
    return last.startswith("_") and not last.startswith("__") and last not in OTHERS


def private_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Places that read or replace a private attribute of another object."""
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
    """Their folders are no packages: pytest would confuse two files of one name."""
    names = Counter(path.name for path in TESTS if path.name not in ("conftest.py", "__init__.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_test_patches_or_reads_a_private_name() -> None:
    found = {place(path): list(private_names(ast.parse(path.read_text(encoding="utf-8")))) for path in TESTS}
    assert {path: names for path, names in found.items() if names} == {}
