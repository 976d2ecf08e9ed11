"""The locks of the images fulfil pyproject.toml and constraints.txt, are complete, and have hashes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.licences import PAGE, page_packages, python_packages
from tools.lock import BUILD, PACKAGES, TORCH, Locked, build_requirements, is_met, packages, pythons, read, torch_pair

LOCKS = (PACKAGES, BUILD, TORCH)


def lock_entries(requirement: Requirement, locked: list[Locked], python: str) -> list[Locked]:
    name = canonicalize_name(requirement.name)
    return [each for each in locked if each.name == name and each.is_for(python)]


@pytest.mark.parametrize("python", pythons())
def test_each_requirement_is_in_the_lock_once_in_a_version_that_fits(python: str) -> None:
    locked = {PACKAGES: read(PACKAGES), BUILD: read(BUILD)}
    wanted = [(each, PACKAGES) for each in packages()] + [(each, BUILD) for each in build_requirements()]
    for requirement, path in wanted:
        if is_met(requirement.marker, python):
            (one,) = lock_entries(requirement, locked[path], python)
            assert requirement.specifier.contains(one.version), requirement


def test_torch_has_the_version_of_the_demo_and_the_tests() -> None:
    assert {each.name: f"=={each.version}" for each in read(TORCH)} == {
        each.name: str(each.specifier) for each in torch_pair()
    }
    assert not {each.name for each in read(TORCH)} & {each.name for each in read(PACKAGES)}


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_a_lock_has_hashes_and_no_address(path: Path) -> None:
    assert all(
        each.hashes and all(re.fullmatch("sha256:[0-9a-f]{64}", one) for one in each.hashes) for each in read(path)
    )
    text = path.read_text()
    assert "://" not in text and not re.search(r"^\s*-", text.replace("    --hash", ""), re.MULTILINE)


def test_the_licences_cover_the_locks() -> None:
    lines = re.findall(r"^\| (\S+) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    wanted = [name for name, _ in (*python_packages(), *page_packages())]
    assert [name for name, _ in lines if name not in ("package", "---")] == wanted, "run `python -m tools.licences`"
    assert not [name for name, licence in lines if not licence], "write these by hand"
