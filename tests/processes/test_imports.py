"""Only the processes that train need torch: the others start in a moment, and take no room from it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("modules", ["app.workers.prefork, *MODULES", "app.main", "app.embedded"])
def test_what_does_not_train_imports_no_torch(modules: str) -> None:
    code = f"""
import importlib, sys
from app.workers.prefork import MODULES
for name in ({", ".join(part if part.startswith("*") else repr(part) for part in modules.split(", "))},):
    importlib.import_module(name)
print(sorted({{"torch", "torchvision"}} & sys.modules.keys()))
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


@pytest.mark.slow
def test_what_only_looks_at_a_store_imports_neither_a_client_of_a_server_nor_what_computes() -> None:
    """They took half a second of each `stagetree studies`."""
    modules = {"alembic", "celery", "fastapi", "numpy", "psycopg", "redis", "scipy", "app.simulation"}
    code = f"import sys, app.cli.commands, app.cli.store; print(sorted({modules} & sys.modules.keys()))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
