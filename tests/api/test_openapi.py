"""The OpenAPI document: valid, complete, stable, and true of what the server answers."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from fastapi.testclient import TestClient
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from stacks import Json
from starlette.middleware import gzip

from app.api.application import LARGE
from tests.api.world import API, STUDY, Workers

OPERATIONS = {
    "submit_study",
    "list_studies",
    "get_study",
    "pause_study",
    "resume_study",
    "cancel_study",
    "complete_study",
    "preview_study",
    "list_trials",
    "get_trial",
    "add_trial",
    "cancel_trial",
    "extend_trial",
    "ask_trials",
    "get_plan",
    "get_stage_tree",
    "list_events",
    "list_slots",
    "healthz",
    "readyz",
    "get_metrics",
}


@pytest.fixture
def document(app: FastAPI) -> Json:
    return app.openapi()


def operations(document: Json) -> Iterator[Json]:
    for path in document["paths"].values():
        yield from path.values()


def resolve(document: Json, schema: Json) -> Json:
    name = schema.get("$ref", "").removeprefix("#/components/schemas/")
    return document["components"]["schemas"][name] if name else schema


def test_it_is_valid(document: Json) -> None:
    validate(document)


def test_operation_ids_are_stable(document: Json) -> None:
    assert {operation["operationId"] for operation in operations(document)} >= OPERATIONS


def test_every_operation_says_what_it_does(document: Json) -> None:
    for operation in operations(document):
        assert operation["summary"]
        assert operation["description"].strip().endswith(".")
        assert operation["tags"]
        for parameter in operation.get("parameters", ()):
            assert parameter.get("description")


def test_every_body_and_every_answer_has_an_example(document: Json) -> None:
    for operation in operations(document):
        contents = [operation["requestBody"]["content"]] if "requestBody" in operation else []
        contents += [answer["content"] for status, answer in operation["responses"].items() if status in ("200", "201")]
        for content in contents:
            for kind, media in content.items():
                schema = resolve(document, media.get("schema", {}))
                assert {"example", "examples"} & media.keys() or "examples" in schema or kind == "text/event-stream"


def test_examples_are_examples_of_their_schemas(document: Json) -> None:
    for name, schema in document["components"]["schemas"].items():
        for example in schema.get("examples", ()):
            _validator(document, name).validate(example)
    _validator(document, "StudySpec").validate(STUDY)


def test_every_refusal_is_a_problem_document(document: Json) -> None:
    for operation in operations(document):
        for status, answer in operation["responses"].items():
            if int(status) >= 400:
                assert answer["content"].keys() == {"application/problem+json"}
                assert answer["description"]
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_answers_are_what_the_document_says(
    http: TestClient, document: Json, tuned_study: str, workers: Workers
) -> None:
    """Before, during and after training."""
    workers.look()
    _check_all(http, document, tuned_study)
    chain = workers.assign(tuned_study, 0)
    _check_all(http, document, tuned_study)
    workers.finish(tuned_study, chain, {"accuracy": 0.5})
    workers.fail(tuned_study, workers.assign(tuned_study, 1), "ValueError: no")
    workers.close(tuned_study)
    _check_all(http, document, tuned_study)


def _check_all(http: TestClient, document: Json, study: str) -> None:
    for path, methods in document["paths"].items():
        if "get" in methods and not path.endswith(("/metrics", "/log", "/checkpoint", "/report", "/film")):
            answer = http.get(f"http://test{path.format(study=study, number=1)}")
            content = methods["get"]["responses"]["200"]["content"]["application/json"]
            name = content["schema"]["$ref"].rsplit("/", 1)[-1]
            _validator(document, name).validate(answer.json())


def _validator(document: Json, name: str) -> Draft202012Validator:
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    return Draft202012Validator(schema)


def test_the_document_is_served(http: TestClient, document: Json) -> None:
    assert http.get("http://test/openapi.json").json() == document
    assert all(path.startswith(API) or path in ("/healthz", "/readyz", "/metrics") for path in document["paths"])


def test_the_page_needs_nothing_from_elsewhere(http: TestClient, document: Json) -> None:
    """`/docs` was blank without a network."""
    page = http.get("http://test/docs")
    assert page.status_code == 200 and page.url.path == "/docs"
    assert "<script" not in page.text and "http://" not in page.text and "https://" not in page.text
    for operation in operations(document):
        assert f'id="{operation["operationId"]}"' in page.text
    for name in document["components"]["schemas"]:
        assert f'id="{name}"' in page.text


def test_kinds_of_tuners_are_required(document: Json) -> None:
    assert not _validator(document, "StudySpec").is_valid(STUDY | {"tuner": {"max_steps": 4}})


def test_long_answers_are_compressed(http: TestClient) -> None:
    answer = http.get("http://test/openapi.json", headers={"Accept-Encoding": "gzip"})
    assert answer.headers["Content-Encoding"] == "gzip"


def test_large_answers_are_compressed_beside_the_event_loop(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody else's small answers would wait meanwhile."""
    threads = dict[str, int]()

    @app.get("/large")
    async def large() -> PlainTextResponse:
        threads["loop"] = threading.get_ident()
        return PlainTextResponse("large " * LARGE)

    class Compressor:
        def __init__(self, *arguments: int) -> None:
            self._compressor, threads["gzip"] = zlib.compressobj(*arguments), threading.get_ident()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._compressor, name)

    monkeypatch.setattr(gzip, "zlib", SimpleNamespace(**vars(zlib) | {"compressobj": Compressor}))
    with TestClient(app, base_url="http://test") as http:
        answer = http.get("/large", headers={"Accept-Encoding": "gzip"})
    assert answer.headers["Content-Encoding"] == "gzip" and answer.text == "large " * LARGE
    assert threads["gzip"] != threads["loop"]
