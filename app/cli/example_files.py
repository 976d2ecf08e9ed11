"""The examples, from the checkout or from the installed wheel."""

from __future__ import annotations

from pathlib import Path

STUDY = "study.yaml"


def examples_folder() -> Path:
    """The folder of the examples. They lie beside the package, or inside it once it is installed."""
    package = Path(__file__).parents[1]
    inside = package / "examples"
    return inside if inside.is_dir() else package.parent / "examples"


def example_study(name: str) -> Path:
    """The study file of an example."""
    return examples_folder() / name / STUDY
