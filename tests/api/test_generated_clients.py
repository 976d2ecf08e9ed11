"""Clients that others' tools make from the document: they are made without complaint, and they work."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from tests.api.world import STUDY

WITHOUT_NODE = "nothing runs programs of Node here"
BIN = Path(sys.executable).parent


@pytest.fixture
def document(app: FastAPI, tmp_path: Path) -> Path:
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(app.openapi()))
    return path


def test_a_python_client(
    app: FastAPI, server: str, document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Study and StudySpec were dropped: two objects had one name."""
    command = [BIN / "openapi-python-client", "generate", "--path", document, "--meta", "none", "--fail-on-warning"]
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    where = tmp_path / "made" / "generated_client"
    where.parent.mkdir()
    made = subprocess.run(
        [*command, "--output-path", where], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert made.returncode == 0, made.stdout + made.stderr
    monkeypatch.syspath_prepend(str(where.parent))
    _use(server)


def _use(server: str) -> None:
    from generated_client import Client  # type: ignore[import-not-found]
    from generated_client.api.studies import get_study, list_studies, submit_study  # type: ignore[import-not-found]
    from generated_client.models import Study, StudySpec  # type: ignore[import-not-found]

    client: Any = Client(base_url=server, raise_on_unexpected_status=True)
    submitted = submit_study.sync(client=client, body=StudySpec.from_dict(STUDY))
    assert isinstance(submitted, Study)
    found = get_study.sync(submitted.study, client=client)
    assert found.spec.to_dict() == submitted.spec.to_dict() and found.progress.trials.done == 0
    assert [study.name for study in list_studies.sync(client=client).items] == [STUDY["name"]]


@pytest.mark.skipif(shutil.which("npx") is None, reason=WITHOUT_NODE)
def test_types_for_typescript(document: Path, tmp_path: Path) -> None:
    tool = ["npx", "--yes", "--prefer-offline", "openapi-typescript@7"]
    if subprocess.run([*tool, "--version"], capture_output=True, timeout=60, check=False).returncode:
        pytest.skip("openapi-typescript cannot be had here")
    types = tmp_path / "api.ts"
    subprocess.run([*tool, document, "-o", types], capture_output=True, timeout=60, check=True)
    text = types.read_text()
    assert "export interface paths" in text
    assert all(f"{name}: {{" in text for name in ("Study", "StudySpec", "TrialDetail", "Problem"))
