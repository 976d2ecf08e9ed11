"""A command imports only the packages that it uses: each further one delays its start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from stores import still_store

COMMAND_LINE = {"annotated_doc", "cython_runtime", "shellingham", "typer"}
STUDY_FILES = {"annotated_types", "pydantic", "pydantic_core", "typing_extensions", "typing_inspection"}
STORE = COMMAND_LINE | STUDY_FILES | {"dotenv", "pydantic_settings", "pysqlite3"}
PACKAGES = {
    ("--help",): COMMAND_LINE,
    ("--version",): COMMAND_LINE,
    ("studies",): STORE,
    ("trials", "last"): STORE,
    ("events", "last"): STORE,
    ("slots",): STORE,
    ("watch", "last", "--quiet"): STORE | {"anyio", "httpcore2", "httpx2"},
}
"""The packages that a command imports, without Python's own. Any other package makes the command slower."""

ROOMS = {"cli", "domain", "events", "exactness", "outages", "process", "registry", "scheduling", "search", "service"}
ROOMS |= {"input_fingerprints", "input_reader", "settings", "storage", "undeclared_inputs"}
ROOMS |= {"simulation", "workers"}  # the study is not over, and its end is forecast with a simulated scheduler
"""The parts of the service by which a store is read: no stack and no API."""

HELP_ROOMS = {"cli", "domain", "embedded", "outages", "process", "service", "workers"}

LIST = """
import atexit, sys
from app.cli import main

def show():
    packages = {name.partition(".")[0] for name in sys.modules if not name.startswith("_")}
    packages -= {*sys.stdlib_module_names, "app", "stagetree"}
    print(*sorted(packages), "|", *sorted({name.split(".")[1] for name in sys.modules if name.startswith("app.")}))

atexit.register(show)
main()
"""


@pytest.mark.parametrize("command", PACKAGES, ids=" ".join)
def test_a_command_imports_only_what_it_uses(command: tuple[str, ...], here: Path) -> None:
    """`studies` took 0.8 s, of which SQLAlchemy, the tables, and the modules of all commands were the half."""
    still_store(here / ".stagetree")
    call = [sys.executable, "-c", LIST, *command]
    shown = subprocess.run(call, cwd=here, capture_output=True, text=True, check=False)
    assert "Traceback" not in shown.stderr
    packages, _, rooms = shown.stdout.splitlines()[-1].partition("|")
    assert set(packages.split()) <= PACKAGES[command]
    assert set(rooms.split()) <= (HELP_ROOMS if command[0] == "--help" else ROOMS)


def test_a_command_imports_no_other_command() -> None:
    """All 60 were imported and made for each of them."""
    code = """
import sys
from app.cli.commands import app
app(["pause", "--help"], standalone_mode=False)
from app.cli.commands import GROUPS
modules = {place.partition(":")[0] for places in GROUPS.values() for place in places}
print(sorted(modules & {name.removeprefix("app.cli.") for name in sys.modules}))
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-1] == "['study_actions']"
