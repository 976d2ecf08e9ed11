"""Refusals as `application/problem+json` (RFC 9457), with a sentence for the client.

Also the parts of the OpenAPI document that FastAPI lacks: refusals, examples, and the names of objects.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from app.api.examples import EXAMPLES
from app.domain import terms
from app.events import DatabaseUnavailable, PlanUnusable, log
from app.service.services import HttpProblem, InvalidField
from app.storage.object_store import StoreUnavailable
from stagetree.models.pages import Problem
from stagetree.spec import SpecError, shorten

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
TRY_AGAIN = {"Retry-After": "1"}


def install(app: FastAPI) -> None:
    """Answer every error with a problem document."""
    for kind, handler in HANDLERS.items():
        app.add_exception_handler(kind, handler)


def answer(
    request: Request, status: int, detail: str, headers: Mapping[str, str] | None = None, **more: Any
) -> Response:
    """The problem document. more: further members, such as `errors`."""
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    body |= {"instance": request.url.path, **more}
    return JSONResponse(body, status, dict(headers or {}), media_type=MEDIA_TYPE)


def _validation(request: Request, error: RequestValidationError) -> Response:
    is_in_path = any(each["loc"][0] == "path" for each in error.errors())
    if is_in_path and ":" in request.url.path and ":" not in getattr(request.scope.get("route"), "path", ""):
        return _not_allowed(request)  # an unknown command, such as `trials/3:explode`, at a route without commands
    return _fields(request, [problem for each in error.errors() for problem in _problems(each)])


_PATTERNS = {
    r"^[\x21-\x7e]{1,255}$": "1 to 255 visible ASCII characters, without spaces",
    r"\S": "text, and not only spaces",
}
"""Patterns in words."""


def _problems(error: Mapping[str, Any]) -> list[dict[str, str]]:
    """The problems in an error of pydantic: one parameter, or all problems of a body."""
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, SpecError):
        return _fields_of(cause)
    field = next(str(part) for part in reversed(error["loc"]) if isinstance(part, str))
    return [{"field": field, "problem": _sentence(error)}]  # without the index of a repeated parameter


def _sentence(error: Mapping[str, Any]) -> str:
    """A sentence on the right value of a parameter."""
    limits, got = error.get("ctx", {}), f", got {shorten(error['input'])}"
    match error["type"]:
        case "missing":
            return "is missing"
        case "greater_than_equal":
            return f"must be at least {limits['ge']}{got}"
        case "less_than_equal":
            return f"must be at most {limits['le']}{got}"
        case "int_parsing" | "int_parsing_size":
            return f"must be a whole number{got}"
        case "bool_parsing":
            return f"must be true or false{got}"
        case "literal_error":
            return f"must be {limits['expected']}{got}"
        case "string_pattern_mismatch":
            return f"must be {_PATTERNS.get(limits['pattern'], 'written as ' + limits['pattern'])}{got}"
        case "string_too_long":
            return f"must have {limits['max_length']} characters at most{got}"
    return str(error["msg"])


def _fields_of(error: SpecError) -> list[dict[str, str]]:
    return [{"field": each.field, "problem": each.problem} for each in error.problems]


def _fields(request: Request, errors: Sequence[Mapping[str, str]]) -> Response:
    first = f"{errors[0]['field']}: {errors[0]['problem']}".removeprefix(": ")
    others = f"; and {len(errors) - 1} more" if len(errors) > 1 else ""
    return answer(request, 422, f"{first}{others}.", errors=errors)


def _http(request: Request, error: HTTPException) -> Response:
    if error.status_code == 405:
        return _not_allowed(request)
    detail = f"There is nothing at {request.url.path}." if error.status_code == 404 else error.detail
    return answer(request, error.status_code, detail, error.headers)


def _not_allowed(request: Request) -> Response:
    """405 with the methods of this path, by the OpenAPI document: a router only knows the first matching route.

    An unknown command, such as `studies/x:explode`, gets a 404.
    """
    shapes = {path: re.sub(r"\\{\w+\\}", "[^/:]+", re.escape(path)) for path in request.app.openapi()["paths"]}
    paths = [path for path, shape in shapes.items() if re.fullmatch(shape, request.url.path)]
    allowed = sorted(method.upper() for path in paths for method in request.app.openapi()["paths"][path])
    if not allowed:
        return answer(request, 404, f"There is nothing at {request.url.path}.")
    detail = f"{request.method} is not possible at {request.url.path}."
    return answer(request, 405, detail, {"Allow": ", ".join(allowed)})


def _refusal_response(request: Request, error: terms.Refused) -> Response:
    status = {terms.Unknown: 404, terms.StateConflict: 409}.get(type(error), 422)
    return answer(request, status, str(error))


def _gone(request: Request, _: ClientDisconnect) -> Response:
    """The client does not read this answer any more."""
    logger.warning("%s %s: the client went away before the end of its body", request.method, request.url.path)
    return answer(request, 400, "The body has no end.")


def _unavailable(request: Request, error: Exception) -> Response:
    return answer(request, 503, str(error), TRY_AGAIN)


CONFLICT = "Too many others are writing to this plan; try again."
DEFECT = "The server made a mistake; its log says which."

HANDLERS: dict[type[Exception], Any] = {
    HttpProblem: lambda request, error: answer(
        request, error.status, error.detail, TRY_AGAIN if error.status == 429 else None
    ),
    InvalidField: lambda request, error: _fields(request, error.errors),
    SpecError: lambda request, error: _fields(request, _fields_of(error)),
    RequestValidationError: _validation,
    HTTPException: _http,
    terms.Refused: _refusal_response,
    log.KeyReused: lambda request, error: answer(request, 422, str(error)),
    log.VersionConflict: lambda request, _: answer(request, 503, CONFLICT, TRY_AGAIN),
    DatabaseUnavailable: _unavailable,
    StoreUnavailable: _unavailable,
    PlanUnusable: lambda request, error: answer(request, 500, str(error)),
    ClientDisconnect: _gone,
    Exception: lambda request, _: answer(request, 500, DEFECT),
}


Json = dict[str, Any]

REF = "#/components/schemas/"
DESCRIPTION = "Hyper-parameter search that trains what trials share only once."
NAMES = {"Outcome": "Result", "StudyAnswer": "Study", "StudyListed": "Listed"}
"""Objects whose names differ from their Python classes: clients know `Study` and `Result`."""

REFUSALS = {
    400: "The body is not JSON.",
    401: "The request has no valid token.",
    403: "The scope or project of the token does not allow this.",
    404: "There is no such study or trial.",
    408: "The body did not arrive in time.",
    409: "Its state does not allow this.",
    413: "The body is too large.",
    415: "The Content-Type is not JSON.",
    422: "The request is invalid; `errors` has the problem of each field.",
    429: "Too many requests that take long are under way; `Retry-After` says when to come back.",
    501: "The server lacks a required library.",
    503: "The database is unavailable.",
}
UNCHANGED: Json = {"description": "Nothing has happened since."}


def refusals(*statuses: int) -> dict[int | str, Json]:
    """The `responses` of a route for these refusals; 401, 403, 408, 422, 429 and 503 are always included."""
    every = sorted({*statuses, 401, 403, 408, 422, 429, 503})
    content = {MEDIA_TYPE: {"schema": {"$ref": f"{REF}Problem"}}}
    return {status: {"description": REFUSALS[status], "content": content} for status in every}


def install_document(app: FastAPI) -> None:
    """Complete the document at its first request."""

    def document() -> Json:
        if app.openapi_schema is None:
            app.openapi_schema = get_openapi(
                title=app.title, version=app.version, description=DESCRIPTION, routes=app.routes, tags=app.openapi_tags
            )
            schemas = app.openapi_schema["components"]["schemas"]
            problem = Problem.model_json_schema(ref_template=REF + "{model}", mode="serialization")
            schemas |= problem.pop("$defs") | {"Problem": problem}
            app.openapi_schema = _rename_schemas(app.openapi_schema)
            for name, example in EXAMPLES.items():  # last: FastAPI drops every null, also meaningful ones in examples
                app.openapi_schema["components"]["schemas"][name]["examples"] = [example]
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _rename_schemas(document: Json) -> Json:
    """The document with the public names of objects."""
    text = json.dumps(document)
    for name, title in NAMES.items():
        text = text.replace(f'"{REF}{name}"', f'"{REF}{title}"')
    renamed: Json = json.loads(text)
    schemas = renamed["components"]["schemas"]
    schemas |= {title: schemas.pop(name) | {"title": title} for name, title in NAMES.items()}
    return renamed
