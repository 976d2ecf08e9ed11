"""The optional modules that commands need, and the extra that brings each."""

from __future__ import annotations

import sys
from importlib.util import find_spec

STORE = ("alembic", "sqlalchemy", "sqlmodel")
SERVER = (
    *STORE,
    "celery",
    "fastapi",
    "fsspec",
    "kombu",
    "numpy",
    "redis",
    "scipy",
    "starlette",
    "threadpoolctl",
    "uvicorn",
)
TRAINING = ("numpy", "safetensors", "torch")
STACK = (*SERVER, *TRAINING)

EXTRAS = {
    **dict.fromkeys((*SERVER, "billiard", "psycopg", "s3fs"), "server"),
    **dict.fromkeys(("safetensors", "sklearn", "torch"), "all"),
    "mcp": "mcp",
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
    if missing := [module for module in modules if not is_installed(module)]:
        extras = {EXTRAS[each] for each in modules}
        raise MissingExtra(missing[0], "all" if "all" in extras else min(extras))


def is_installed(module: str) -> bool:
    """Whether the module can be imported; it is not imported."""
    return module in sys.modules or find_spec(module) is not None
