"""How the code is cut, in numbers: `python -m tools.shape`. `tests/test_structure.py` holds it to bounds."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import quantiles

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("app", "stagetree")


@dataclass(frozen=True)
class Function:
    """A function or method. lines: all of it, with signature and docstring. body: without these, and without gaps."""

    name: str
    lines: int
    body: int


@dataclass(frozen=True)
class SourceFile:
    """A Python file. name: as it is imported, `app.cli.output`; of an `__init__.py`, the name of its folder."""

    path: Path
    name: str

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def is_named_by_python(self) -> bool:
        """`__init__.py` and `__main__.py` must be where they are."""
        return self.path.name.startswith("__")

    def public_classes(self) -> Iterator[str]:
        """The classes at the top of the file whose names have no underscore in front."""
        return (
            node.name for node in self.tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        )

    def functions(self) -> Iterator[Function]:
        """All of them, also within classes and functions."""
        lines = self.text.splitlines()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                last = node.end_lineno or node.lineno
                body = node.body[1:2] if ast.get_docstring(node) else node.body
                begin = body[0].lineno - 1 if body else last
                filled = sum(bool(line.strip()) for line in lines[begin:last])
                yield Function(node.name, last - node.lineno + 1, filled)

    def imported(self) -> Iterator[tuple[str, str]]:
        """Each name that is imported anywhere in the file, with its module; "" where the module itself is."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                yield from ((node.module, alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from ((alias.name, "") for alias in node.names)


def source_files() -> list[SourceFile]:
    """The files of the packages, by name."""
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return sorted((SourceFile(path, _name(path)) for path in paths), key=lambda each: each.name)


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(files: list[SourceFile]) -> dict[str, set[str]]:
    """The modules of the packages that each file imports, at its top and within functions."""
    names = {each.name for each in files}
    return {each.name: {found for found in _modules(each, names) if found != each.name} for each in files}


def _modules(file: SourceFile, names: set[str]) -> Iterator[str]:
    for module, name in file.imported():
        yield from ({f"{module}.{name}", module} & names if f"{module}.{name}" not in names else {f"{module}.{name}"})


def importers(files: list[SourceFile]) -> dict[str, set[str]]:
    """The files that import each file, also through the `__init__.py` of its folder."""
    names = {each.name for each in files}
    passed_on = {
        (each.name, name): module
        for each in files
        if each.path.name == "__init__.py"
        for module, name in each.imported()
        if module in names
    }
    found = defaultdict[str, set[str]](set)
    for each in files:
        for module, name in each.imported():
            target = f"{module}.{name}" if f"{module}.{name}" in names else passed_on.get((module, name), module)
            if target in names and target != each.name:
                found[target].add(each.name)
    return found


def main() -> None:
    files = source_files()
    lines = [each.lines for each in files]
    counts = [len(found) for found in imports(files).values()]
    functions = [function.lines for each in files for function in each.functions()]
    print(f"files             {len(files)}")
    print(f"lines             {sum(lines)}")
    for what, numbers in (("lines a file", lines), ("lines a function", functions), ("internal imports", counts)):
        cuts = quantiles(numbers, n=20, method="inclusive")
        print(f"{what:<17} median {cuts[9]:.0f}, p95 {cuts[18]:.0f}, most {max(numbers)}")
    print(f"under 60 lines    {sum(each.lines < 60 and not each.is_named_by_python for each in files)} files")


if __name__ == "__main__":
    main()
