from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from commandline import Said, Stagetree
from stacks import Service

from app.cli import main


@pytest.fixture
def stagetree(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Stagetree:
    """Run a command in this process."""

    def run(*arguments: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["stagetree", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        return Said(code if isinstance(code, int) else 0, *capsys.readouterr())

    return run


@pytest.fixture
def served(stack: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    """A running server that the environment names."""
    monkeypatch.setenv("STAGETREE_URL", stack.url)
    return stack


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Any], Path]:
    """A study file with this in it: text as it is, anything else as YAML."""

    def file(content: Any) -> Path:
        path = tmp_path / "study.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return path

    return file


@pytest.fixture
def make_store() -> Callable[..., str]:
    """Make a store in a folder, with a study that was submitted and that nobody runs; its id."""

    def make(folder: Path, name: str = "still") -> str:
        from app.domain import commands as c
        from app.domain.decide import decide
        from app.domain.terms import StudyId
        from app.events.database import Database
        from app.events.plans import Plans
        from app.events.records import SqlRecords, Write, transact
        from tests.plans import OPENED, study_of

        folder.mkdir()
        database = Database(f"sqlite:///{folder / 'stagetree.db'}")
        database.create()
        records = SqlRecords(database)
        spec = study_of([({"lr": 0.1}, 4)], name=name).to_json()
        command = c.SubmitStudy(plan=OPENED, study=StudyId("still-123456"), spec=spec, at=1.0)
        write = Write(stream="plan-1", decide=lambda plan: decide(plan, command), at=1.0)
        transact(records.log, Plans(records.log), write)
        records.close()
        return "still-123456"

    return make
