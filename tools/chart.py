"""Renders docker/helm with the helm on PATH: `python -m tools.chart` writes what tests look at where there is none.

The file begins with a digest of the chart and of the values that it was rendered with, so that none is out of date.
"""

from __future__ import annotations

import subprocess
import sys
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[1]
CHART = ROOT / "docker" / "helm"
VALUES = ROOT / "tests" / "docker" / "helm_values.yaml"
RENDERED = ROOT / "tests" / "docker" / "helm_rendered.yaml"
HEADER = "# `python -m tools.chart` of"


def digest() -> str:
    """Of all that the rendered objects follow from."""
    files = sorted(path for path in CHART.rglob("*") if path.is_file())
    parts = [part for path in (*files, VALUES) for part in (path.name.encode(), path.read_bytes())]
    return sha256(b"\0".join(parts)).hexdigest()[:16]


def render(helm: str, *values: str) -> str:
    """The objects of a release with the defaults, and of another with the values, as YAML."""
    releases = (["stagetree"], ["other", "--values", str(VALUES)])
    commands = ([helm, "template", *release, *values, str(CHART)] for release in releases)
    return "".join(subprocess.run(each, check=True, capture_output=True, text=True).stdout for each in commands)


if __name__ == "__main__":
    RENDERED.write_text(f"{HEADER} {digest()}\n{render(*sys.argv[1:] or ['helm'])}")
