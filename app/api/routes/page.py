"""Pages for browsers: the built page, and a description of the API that needs no network."""

from __future__ import annotations

import json
from html import escape
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi import Path as PathParameter
from fastapi.responses import FileResponse, HTMLResponse, Response

from app.service import files
from app.service.services import HttpProblem

Json = dict[str, Any]

description = APIRouter(include_in_schema=False)

REF = "#/components/schemas/"
STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin-top: 2.5rem } h3 { margin-bottom: .3rem; font-size: 1.05rem }
code, pre { font: 14px/1.5 ui-monospace, monospace }
pre { overflow-x: auto; padding: .7rem 1rem; border: 1px solid #8884; border-radius: 6px }
table { border-collapse: collapse } td, th { text-align: left; vertical-align: top; padding: .2rem 1rem .2rem 0 }
.verb { display: inline-block; min-width: 4.2rem; font-weight: 600 } a { color: inherit } details { margin: .5rem 0 }
"""


@description.get("/docs")
def docs(request: Request) -> HTMLResponse:
    """Every operation with its parameters, an example of its body, and the fields of its answer."""
    document: Json = request.app.openapi()
    text = f"<h1>{escape(document['info']['title'])}</h1><p>{escape(document['info']['description'])} "
    text += 'For programs: <a href="openapi.json">openapi.json</a>. In Python: <code>stagetree.Client</code>.</p>'
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).append(_operation(document, method, path, operation))
    text += "".join(f"<h2>{escape(tag)}</h2>{''.join(sections)}" for tag, sections in by_tag.items())
    text += "<h2>objects</h2>" + "".join(_object(*each) for each in sorted(document["components"]["schemas"].items()))
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
    return HTMLResponse(
        f'<!doctype html><html lang="en"><head>{head}<title>stagetree API</title></head><body>{text}</body></html>',
        headers={"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"},
    )


def _operation(document: Json, method: str, path: str, operation: Json) -> str:
    verb = f'<span class="verb">{method.upper()}</span>'
    text = f'<h3 id="{operation["operationId"]}">{verb} <code>{escape(path)}</code></h3>'
    text += f"<p>{escape(operation['summary'])}. {escape(operation.get('description', ''))}</p>"
    if parameters := operation.get("parameters"):
        rows = [(each["name"], each["in"], each.get("description", "")) for each in parameters]
        text += _table([(escape(name), escape(place), escape(about)) for name, place, about in rows])
    if body := operation.get("requestBody"):
        media = body["content"]["application/json"]
        example = next(iter(media.get("examples", {"": {}}).values())).get("value")
        text += f"<details><summary>Body: {_kind(media['schema'])}</summary>{_json(example)}</details>"
    answers = [_answer(*each) for each in operation["responses"].items()]
    return text + _table(answers)


def _answer(status: str, answer: Json) -> tuple[str, str, str]:
    schema: Json = next((media.get("schema", {}) for media in answer.get("content", {}).values()), {})
    return escape(status), _kind(schema), escape(answer.get("description", ""))


def _object(name: str, schema: Json) -> str:
    rows = [
        (f"<code>{escape(field)}</code>", _kind(inner), escape(inner.get("description", "")))
        for field, inner in schema.get("properties", {}).items()
    ]
    example = next(iter(schema.get("examples", ())), None)
    shown = f"<details><summary>example</summary>{_json(example)}</details>" if example else ""
    text = f"<p>{escape(schema.get('description', ''))}</p>{_table(rows)}{shown}"
    return f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>{text}</details>'


def _kind(schema: Json) -> str:
    """A type in words, with a link to an object."""
    if "$ref" in schema:
        name = escape(schema["$ref"].removeprefix(REF))
        return f'<a href="#{name}">{name}</a>'
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(map(_kind, schema[several]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if "enum" in schema:
        return escape(" or ".join(map(str, schema["enum"])))
    return escape(str(schema.get("type", "")))


def _json(value: Any) -> str:
    return f"<pre>{escape(json.dumps(value, indent=2, ensure_ascii=False))}</pre>"


def _table(rows: list[tuple[str, str, str]]) -> str:
    """rows: cells in HTML."""
    cells = ("".join(f"<td>{cell}</td>" for cell in row) for row in rows)
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


router = APIRouter(include_in_schema=False)

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
FOR_EVER = "public, max-age=31536000, immutable"
"""For assets with a content hash in their name, which never change."""

Asset = Annotated[str, PathParameter(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+$")]


@router.get("/")
def page() -> Response:
    """The page. Its view is in the address's fragment, after the #."""
    index = files.index()
    return _missing() if index is None else FileResponse(index, headers=HEADERS)


@router.get("/assets/{name}")
def asset(name: Asset) -> Response:
    """A script or a style sheet of the page."""
    path = files.asset(name)
    if path is None:
        raise HttpProblem(404, f"The page has no file {name}: it may be of another version, so load it again.")
    return FileResponse(path, headers=HEADERS | {"Cache-Control": FOR_EVER})


def _missing() -> Response:
    why = escape(files.missing_page_reason())
    text = f"<h1>stagetree</h1><p>The page is missing here. {why}</p><p>The API is there: <a href='docs'>docs</a></p>"
    head = '<meta charset="utf-8"><meta name="color-scheme" content="light dark"><title>stagetree</title>'
    return HTMLResponse(f'<!doctype html><html lang="en"><head>{head}</head><body>{text}</body></html>', 503, HEADERS)
