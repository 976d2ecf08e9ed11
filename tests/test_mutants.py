"""The mutants that `tools/mutants` makes of a file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools.mutants.changes import Mutant, mutants_of
from tools.mutants.equivalent import EQUIVALENT
from tools.mutants.made_of import is_as_it_was, made_of
from tools.mutants.tests_of import ExecutedLines

ROOT = Path(__file__).parents[1]


def mutants(folder: Path, source: str) -> list[Mutant]:
    (folder / "some.py").write_text(source)
    return list(mutants_of(folder, "some.py"))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("if a:\n    raise b", ["if False:\n    raise b"]),
        ("if a:\n    b()", ["if True:\n    b()"]),
        ("if a:\n    b()\nelse:\n    c()", []),
        ("if TYPE_CHECKING:\n    b()", []),
        ("a = b and c", ["a = c and True", "a = b and True"]),
        ("a = not b or c", ["a = c or False", "a = not b or False"]),
        ("a = b or 1", []),
        ("while a:\n    b()", ["while False:\n    b()"]),
        ("while True:\n    b()", []),
        ("a.where(b, c)", ["a.where(c)", "a.where(b)"]),
        ("a.with_for_update()", ["a.where()"]),
        ("a = [b for b in c if d]", ["a = [b for b in c]"]),
        ("try:\n    a()\nexcept B:\n    c()", ["try:\n    a()\nexcept ():\n    c()"]),
        ("match a:\n    case b if c:\n        d()", ["match a:\n    case b:\n        d()"]),
    ],
)
def test_each_guard_is_taken_out_alone(tmp_path: Path, source: str, expected: list[str]) -> None:
    assert [mutant.source for mutant in mutants(tmp_path, source)] == expected


def test_guards_that_are_alike_have_names_of_their_own(tmp_path: Path) -> None:
    """Otherwise a killed one would hide the other, which survived."""
    names = [mutant.name for mutant in mutants(tmp_path, "if a:\n    raise b\nif a:\n    raise c\n")]
    assert names == ["some.py module: never: if a", "some.py module: never: if a (2)"]


def test_a_mutant_knows_the_lines_of_its_guard(tmp_path: Path) -> None:
    (mutant,) = mutants(tmp_path, "a = 1\nif (\n    a\n    == 2\n):\n    raise SystemExit\n")
    assert [*mutant.lines] == [3, 4]


def test_the_quickest_tests_of_a_line_come_first(tmp_path: Path) -> None:
    (mutant,) = mutants(tmp_path, "if a:\n    raise b")
    tests = ExecutedLines(
        {"some.py": {1: {"slow", "quick"}, 2: {"other", ""}}}, {"slow": 9.0, "quick": 1.0, "other": 2.0}
    )
    assert tests.covering(mutant) == ["quick", "slow"]
    assert tests.quick(mutant) == ["quick", "slow"]
    tests.seconds["slow"] = 60.0
    assert (tests.quick(mutant), tests.others(mutant)) == (["quick"], ["slow"])
    tests.seconds["quick"] = 50.0
    assert tests.quick(mutant) == ["quick"]


def test_of_equally_quick_tests_the_most_specific_comes_first(tmp_path: Path) -> None:
    (mutant,) = mutants(tmp_path, "if a:\n    raise b")
    tests = ExecutedLines()
    measured = {"some.py": {"1": ["broad", "narrow"], "2": ["broad"]}, "other.py": {"1": ["broad"], "2": ["broad"]}}
    (tmp_path / "map").write_text(
        json.dumps({"seconds": {"broad": 1.0, "narrow": 1.5}, "failed": [], "lines": measured})
    )
    tests.add(tmp_path / "map")
    assert tests.covering(mutant) == ["narrow", "broad"]


def test_a_line_executed_by_an_import_belongs_to_all_tests(tmp_path: Path) -> None:
    (mutant,) = mutants(tmp_path, "if a:\n    raise b")
    tests = ExecutedLines({"some.py": {1: {"", "first"}, 2: {"other"}}}, {"first": 1.0, "other": 2.0})
    assert tests.covering(mutant) == ["first", "other"]  # the first test to run imports it


def test_coverage_is_reused_until_one_of_its_files_changes(tmp_path: Path) -> None:
    helper = tmp_path / "helper.py"
    helper.write_text("a = 1")
    files = made_of(tmp_path, [SimpleNamespace(__file__=str(helper)), pytest, SimpleNamespace()])
    assert [*files] == ["helper.py"]
    (tmp_path / "other.py").write_text("")
    assert is_as_it_was(tmp_path, files)
    helper.write_text("a = 2")
    assert not is_as_it_was(tmp_path, files)
    helper.unlink()
    assert not is_as_it_was(tmp_path, files)


def test_declared_equivalent_mutants_exist() -> None:
    files = {name.split()[0] for name in EQUIVALENT}
    assert EQUIVALENT.keys() <= {mutant.name for file in files for mutant in mutants_of(ROOT, file)}


def test_modules_imported_once_import_no_mutated_file() -> None:
    """Otherwise no run would execute a mutant."""
    program = "import sys, importlib; from tools.mutants.runner import CHANGED, NEEDED; "
    program += "[importlib.import_module(name) for name in NEEDED.split() if name.startswith('app.')]; "
    program += "sys.exit(str([name for name in sys.modules if name.startswith(CHANGED)] or ''))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
