"""How long something takes, or is waited for, is measured by a clock that does not jump."""

from __future__ import annotations

import ast
from pathlib import Path

from stacks import ROOT

DATES = {
    "app/agents/status.py": "since when a stage trains, by its own date",
    "app/cli/delete.py": "when a study was deleted, or a checkpoint given up",
    "app/cli/events.py": "the beginning of the requested events",
    "app/cli/store.py": "the age of a study",
    "app/cli/archive.py": "when a plan was archived, and which are old",
    "app/cli/backup.py": "when a backup was made",
    "app/cli/study_actions.py": "when a study was struck",
    "app/cli/doctor.py": "whether it is the same here and on the server",
    "app/cli/tokens.py": "when a token was made, and until when it lasts",
    "app/embedded/machine.py": "when the token of its user was made",
    "app/events/housekeeping.py": "when a plan was archived",
    "app/events/memory/log.py": "the clock of a database in memory",
    "app/main.py": "when a fact was stated",
    "app/registry.py": "how old a file is by its own dates",
    "app/workers/scheduler/ports.py": "when a fact was stated",
    "app/workers/roles.py": "when a fact was stated",
    "app/workers/slot/context.py": "when a fact was stated",
    "app/workers/preparation.py": "when a process began to be prepared, beside the dates of files",
    "stagetree/runtime/exactness/digests.py": "no clock: times of day are values, too",
    "stagetree/runtime/reads/file_reads.py": "when another program was started, beside the dates of files",
    "stagetree/runtime/checkpoints/state_format.py": "no clock: scalars of NumPy that are dates",
}
"""The files that read the date, and the purpose."""

JUMPING = {"time", "time_ns", "now", "utcnow", "today"}


def test_only_facts_have_dates() -> None:
    found = {
        str(path.relative_to(ROOT))
        for package in ("app", "stagetree")
        for path in (ROOT / package).rglob("*.py")
        if reads_date(path)
    }
    assert found == set(DATES)


def reads_date(path: Path) -> bool:
    """Whether the module names the clock that people set: time.time, time_ns, datetime.now and their like."""
    tree = ast.parse(path.read_text())
    named = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in JUMPING]
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return any(
        isinstance(node.value, ast.Name) and node.value.id in ("time", "datetime", "date") for node in named
    ) or any(node.module in ("time", "datetime") and JUMPING & {name.name for name in node.names} for node in imported)
