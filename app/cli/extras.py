"""The optional parts of the package: which commands need them, and how they are installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stagetree.spec import StudySpec

STORE = ("alembic", "sqlalchemy", "sqlmodel")
SERVER = (*STORE, "celery", "fastapi", "fsspec", "kombu", "numpy", "redis", "scipy", "starlette", "uvicorn")
TRAINING = ("numpy", "safetensors", "torch")
STACK = (*SERVER, *TRAINING)

EXTRAS = {
    **dict.fromkeys((*SERVER, "billiard", "psycopg", "s3fs"), "server"),
    **dict.fromkeys(("safetensors", "sklearn", "torch"), "all"),
}
"""The extra that brings each optional module."""


class MissingExtra(Exception):
    """A module of an extra that this command needs is not installed."""

    def __init__(self, module: str, extra: str) -> None:
        command = " ".join(["stagetree", *sys.argv[1:2]])
        super().__init__(f"{command} needs {module}: pip install 'stagetree[{extra}]'")


def require(*modules: str) -> None:
    """Raise `MissingExtra` for a module that this command imports later, or in another process.

    The message names the extra that brings all of these modules.
    """
    if missing := [module for module in modules if find_spec(module) is None]:
        raise MissingExtra(missing[0], "all" if any(EXTRAS[each] == "all" for each in modules) else "server")


def require_for_tuner(spec: StudySpec) -> None:
    """Raise `MissingExtra` if the study's tuner or sampler computes by a package that is not installed.

    A preview takes random configurations for a sampler that learns, so it needs nothing for that.
    """
    if spec.tuner.kind in ("pop", "early_term") or spec.stop_hopeless is not None:
        require("numpy", "scipy")
    if getattr(spec.tuner, "sampler", "") in ("sobol", "halton"):
        require("numpy", "scipy")
