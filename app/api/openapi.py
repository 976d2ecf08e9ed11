"""What the OpenAPI document says beyond what FastAPI sees: how refusals look, examples, and the names of objects."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from app.api.errors import MEDIA_TYPE
from app.api.examples import EXAMPLES
from stagetree.models.pages import Problem

Json = dict[str, Any]

REF = "#/components/schemas/"
DESCRIPTION = "Hyper-parameter search that trains what trials share only once."
NAMES = {"Outcome": "Result", "StudyAnswer": "Study", "StudyListed": "Listed"}
"""Objects with other names than the classes of Python, where `Study` and `Result` are what a client works with."""

REFUSALS = {
    400: "The body is not JSON.",
    401: "It has no token, or one that is unknown or ended.",
    403: "The scope or project of the token does not allow this.",
    404: "There is no such study or trial.",
    409: "Its state does not allow this.",
    413: "The body is too large.",
    415: "The body is not said to be JSON.",
    422: "Something in the request is wrong; `errors` says what, and where.",
    503: "The database cannot be used now.",
}
UNCHANGED: Json = {"description": "Nothing has happened since."}


def refusals(*statuses: int) -> dict[int | str, Json]:
    """The `responses` of a route that may refuse with these; 401, 403, 422 and 503 always may."""
    return {status: _refusal(status) for status in sorted({*statuses, 401, 403, 422, 503})}


def _refusal(status: int) -> Json:
    return {"description": REFUSALS[status], "content": {MEDIA_TYPE: {"schema": {"$ref": f"{REF}Problem"}}}}


def operation_id(route: APIRoute) -> str:
    """The function's name: stable, and what a generated client calls it."""
    return route.name


def install(app: FastAPI) -> None:
    """Complete the document when it is first asked for."""

    def document() -> Json:
        if app.openapi_schema is None:
            app.openapi_schema = get_openapi(
                title=app.title, version=app.version, description=DESCRIPTION, routes=app.routes, tags=app.openapi_tags
            )
            found = app.openapi_schema["components"]["schemas"]
            problem = Problem.model_json_schema(ref_template=REF + "{model}", mode="serialization")
            found |= problem.pop("$defs") | {"Problem": problem}
            app.openapi_schema = _renamed(app.openapi_schema)
            _add_examples(app.openapi_schema["components"]["schemas"])
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _renamed(document: Json) -> Json:
    """The same with the objects' names in it."""
    text = json.dumps(document)
    for name, shown in NAMES.items():
        text = text.replace(f'"{REF}{name}"', f'"{REF}{shown}"')
    renamed: Json = json.loads(text)
    found = renamed["components"]["schemas"]
    found |= {shown: found.pop(name) | {"title": shown} for name, shown in NAMES.items()}
    return renamed


def _add_examples(found: dict[str, Json]) -> None:
    """Here, since FastAPI drops every null from the document, also those in examples, where they mean something."""
    for name, example in EXAMPLES.items():
        found[name]["examples"] = [example]
