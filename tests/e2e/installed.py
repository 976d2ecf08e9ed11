"""The package as users have it: a wheel, built from this checkout and installed into an environment of its own."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

from stacks import ROOT


def install(folder: Path) -> Path:
    """The programs of a fresh environment, which looks for what the package needs where the tests have it."""
    home = folder / "environment"
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    _run("-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder))
    [wheel] = folder.glob("*.whl")
    _run("-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel))
    [site] = home.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return python.parent


def _run(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, capture_output=True)
