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

ROOMS = {"cli", "domain", "events", "exactness", "outages", "process", "registry", "scheduling", "service", "settings"}
ROOMS |= {"input_fingerprints", "input_reader", "storage"}
"""The parts of the service by which a store is read: no stack, no API and no tuners."""

FORECAST_ROOMS = {"search", "simulation", "tuner_files", "workers"}
"""The end of a study that is not over is forecast with a simulated scheduler."""

HELP_ROOMS = {"cli", "domain", "embedded", "outages", "process", "service", "workers"}

LIST = """
import atexit, sys
from app.cli import main

def show():
    packages = {name.partition(".")[0] for name in sys.modules if not name.startswith("_")}
    packages -= {*sys.stdlib_module_names, "app", "stagetree"}
    rooms = {name.split(".")[1] for name in sys.modules if name.startswith("app.")}
    print(*sorted(packages), "|", *sorted(rooms), "|", "stagetree.spec" in sys.modules)

atexit.register(show)
main()
"""


@pytest.mark.parametrize("is_over", [True, False])
@pytest.mark.parametrize("command", PACKAGES, ids=" ".join)
def test_a_command_imports_only_what_it_uses(command: tuple[str, ...], here: Path, is_over: bool) -> None:
    """`studies` took 0.8 s, of which SQLAlchemy, the tables, and the modules of all commands were the half; later the
    tuners and the study file.
    """
    still_store(here / ".stagetree", is_over=is_over)
    call = [sys.executable, "-c", LIST, *command]
    shown = subprocess.run(call, cwd=here, capture_output=True, text=True, check=False)
    assert "Traceback" not in shown.stderr
    packages, rooms, has_study_files = shown.stdout.splitlines()[-1].split("|")
    assert set(packages.split()) <= PACKAGES[command]
    reading = ROOMS if is_over else ROOMS | FORECAST_ROOMS
    assert set(rooms.split()) <= (HELP_ROOMS if command[0] == "--help" else reading)
    assert has_study_files.strip() == "False" or not is_over


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
