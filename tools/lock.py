"""Writes the locks of the images: `make lock`, and `python -m tools.lock --upgrade` for newer versions.

Each is a file for `pip install --require-hashes`, without the address of a registry, for every Python and machine:

- docker/requirements.txt: all that the extras `all` and `examples` need, but torch and torchvision themselves.
- docker/build.txt: what builds our own package.
- docker/torch-cpu.txt: torch and torchvision of constraints.txt, as they are installed here. Images for GPUs have a
  torch of their own.

A newer version is taken where one here no longer fits pyproject.toml. uv, of the group `supply`, does the work.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import chdir
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from hatchling.build import get_requires_for_build_editable
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PACKAGES, BUILD, TORCH = (ROOT / "docker" / f"{name}.txt" for name in ("requirements", "build", "torch-cpu"))
CONSTRAINTS = ROOT / "constraints.txt"
EXTRAS = ("all", "examples")
"""What the images install of ours."""

UV = ("uv", "pip", "compile", "-", "--universal", "--generate-hashes", "--no-header", "--annotation-style", "line")


@dataclass(frozen=True)
class Locked:
    """One version of a package."""

    name: str
    version: str
    marker: Marker | None
    hashes: tuple[str, ...]

    def is_for(self, python: str) -> bool:
        """Whether an image with this Python, such as 3.12, has it."""
        return is_met(self.marker, python)


def is_met(marker: Marker | None, python: str) -> bool:
    """Whether a marker is met on Linux, with this Python."""
    linux = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    return marker is None or marker.evaluate({**linux, "python_version": python, "python_full_version": f"{python}.0"})


def pythons() -> list[str]:
    """The versions of Python that we support, the oldest first."""
    name = "Programming Language :: Python :: "
    return [each.removeprefix(name) for each in _pyproject()["project"]["classifiers"] if each.startswith(name)]


def _pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def read(path: Path) -> list[Locked]:
    """The packages of a lock. One may stand there several times, with other markers."""
    text = re.sub(r"\s*\\\n\s*", " ", path.read_text(encoding="utf-8"))
    return [_parse(line) for line in text.splitlines() if line and not line.lstrip().startswith("#")]


def _parse(line: str) -> Locked:
    stated, *hashes = line.split(" --hash=")
    requirement = Requirement(stated)
    (pin,) = requirement.specifier
    name = canonicalize_name(requirement.name)
    return Locked(name, pin.version, requirement.marker, tuple(each.split()[0] for each in hashes))


def requirements(extras: Iterable[str] = EXTRAS) -> Iterator[Requirement]:
    """What pyproject.toml says of these extras, with all of ours that they name."""
    project = _pyproject()["project"]
    yield from map(Requirement, project["dependencies"])
    for extra in extras:
        for each in map(Requirement, project["optional-dependencies"][extra]):
            if each.name == project["name"]:
                yield from requirements(sorted(each.extras))
            else:
                yield each


def build_requirements() -> list[Requirement]:
    """What an editable installation of ours is built with."""
    with chdir(ROOT):
        more = get_requires_for_build_editable()
    return [Requirement(each) for each in (*_pyproject()["build-system"]["requires"], *more)]


def torch_pair() -> list[Requirement]:
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def packages() -> Iterator[Requirement]:
    """The requirements of the first lock: all but torch itself, whose dependencies stay."""
    pair = {each.name for each in torch_pair()}
    needed = (Requirement(line) for name in pair for line in metadata.requires(name) or ())
    of_torch = [each for each in needed if not (each.marker and "extra" in str(each.marker))]
    yield from (each for each in (*requirements(), *of_torch) if each.name not in pair)


def write_lock(wanted: Iterable[Requirement], path: Path, *options: str) -> None:
    """Write a lock. Versions that are in the file stay."""
    lines = "\n".join(sorted({str(each) for each in wanted}))
    command = [*UV, "--python-version", pythons()[0], *options, "--quiet", "--output-file", path]
    subprocess.run(command, input=lines, text=True, check=True, stdout=subprocess.DEVNULL)


def write_torch() -> None:
    """Write the lock of the files that pip chooses here."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"]
    said = subprocess.run([*command, "--report", "-", "-r", CONSTRAINTS], capture_output=True, text=True, check=True)
    chosen = json.loads(said.stdout[said.stdout.index("{") :])["install"]
    lines = [
        f"{each['metadata']['name']}=={each['metadata']['version'].partition('+')[0]} \\\n"
        f"    --hash=sha256:{each['download_info']['archive_info']['hashes']['sha256']}\n"
        for each in chosen
    ]
    TORCH.write_text("".join(lines), encoding="utf-8")


def main(*options: str) -> None:
    write_lock(packages(), PACKAGES, *options)
    write_lock(build_requirements(), BUILD, *options)
    write_torch()


if __name__ == "__main__":
    main(*sys.argv[1:])
