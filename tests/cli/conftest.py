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
def running_server(stack: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    """A running server that the environment names."""
    monkeypatch.setenv("STAGETREE_URL", stack.url)
    return stack


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, and an environment that names no server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STAGETREE_URL", raising=False)
    return tmp_path


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Any], Path]:
    """A study file with this in it: text as it is, anything else as YAML."""

    def file(content: Any) -> Path:
        path = tmp_path / "study.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return path

    return file
