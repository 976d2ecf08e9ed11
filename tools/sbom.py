"""Writes what the images hold, in the format CycloneDX: `make sbom`.

sbom/python.json has the packages of the locks with their hashes, sbom/page.json the packages of the page.
Neither needs a network. Images for GPUs also hold what their base image does.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from hatch_build import npm
from tools.lock import PACKAGES, ROOT, TORCH

FOLDER = ROOT / "sbom"
PYTHON = ("cyclonedx-py", "requirements", "--output-reproducible", "--pyproject", "pyproject.toml", "-")
PAGE = ("sbom", "--package-lock-only", "--omit", "dev", "--sbom-format", "cyclonedx")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    locked = "".join(path.read_text(encoding="utf-8") for path in (PACKAGES, TORCH))
    _write(FOLDER / "python.json", [*PYTHON], ROOT, locked)
    node, *script = npm() or ["npm"]
    os.environ["PATH"] = os.pathsep.join([str(Path(node).parent), os.environ["PATH"]])
    _write(FOLDER / "page.json", [node, *script, *PAGE], ROOT / "app" / "page")


def _write(path: Path, command: list[str], folder: Path, given: str = "") -> None:
    done = subprocess.run(command, cwd=folder, input=given, stdout=subprocess.PIPE, text=True, check=True)
    path.write_text(done.stdout, encoding="utf-8")


if __name__ == "__main__":
    main()
