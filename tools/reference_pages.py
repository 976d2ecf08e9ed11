"""Writes the reference pages of the guide from the code: `python -m tools.reference_pages`.

`docs/study-fields.md` has the fields of study files, `docs/commands.md` the commands and their options, and
`docs/rest-routes.md` the routes of the API. Guidance is on pages of its own. A test compares the pages with the code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pydantic.fields import FieldInfo
from typer.main import get_command

from app.api.access import AccessPolicy
from app.api.application import make_app
from app.cli.commands import app as command_line
from stagetree.spec import OTHER_NAMES, StudySpec
from stagetree.spec.tuners import KINDS, TunerSpec

DOCS = Path(__file__).resolve().parents[1] / "docs"
MARK = "<!-- `python -m tools.reference_pages` writes this page from the code: change the descriptions there. -->"
Json = dict[str, Any]

FIRST = ("name", "trainer", "metric", "mode", "space", "where", "tuner")
"""The fields of a first study, which the table begins with."""

MORE = {
    "space": "spaces-and-studies.md#space",
    "where": "spaces-and-studies.md#where",
    "tuner": "spaces-and-studies.md#tuners",
    "trainer": "trainers.md",
    "runtime_args": "spaces-and-studies.md#the-plan",
    "begin_from": "inputs.md",
    "inputs": "inputs.md",
    "determinism": "spaces-and-studies.md#exactness-and-speed",
    "packing": "packing.md",
    "shards": "several-gpus.md",
    "ranks": "several-gpus.md#how-many-devices-a-stage-has",
    "parallel": "several-gpus.md#parameters-that-are-divided",
    "devices": "slurm-and-kubernetes.md#several-kinds-of-gpu",
    "metrics": "spaces-and-studies.md#several-metrics-and-constraints",
    "constraints": "spaces-and-studies.md#several-metrics-and-constraints",
    "value": "concepts.md#last-and-best-results",
    "eval_every": "spaces-and-studies.md#results",
    "repeats": "spaces-and-studies.md#repeats",
    "keep_best": "spaces-and-studies.md#states-that-are-kept",
    "keep_at": "spaces-and-studies.md#states-that-are-kept",
    "keep_every": "spaces-and-studies.md#states-that-are-kept",
    "max_restarts": "spaces-and-studies.md#failures",
    "max_failures": "spaces-and-studies.md#failures",
    "target": "spaces-and-studies.md#the-end-of-a-study",
    "patience": "spaces-and-studies.md#the-end-of-a-study",
    "max_time": "spaces-and-studies.md#the-end-of-a-study",
    "max_total_steps": "spaces-and-studies.md#budgets",
    "max_slot_seconds": "spaces-and-studies.md#budgets",
    "priority": "spaces-and-studies.md#slots",
    "weight": "spaces-and-studies.md#slots",
    "max_slots": "spaces-and-studies.md#slots",
    "stop_hopeless": "spaces-and-studies.md#stop-hopeless",
    "sinks": "sinks.md",
    "check": "exactness.md#what-is-compared",
    "audit": "exactness.md#an-audit",
    "inexact": "exactness.md#when-the-trainer-is-not-exact",
    "fresh_processes": "exactness.md#what-is-constructed",
    "suggestions": "samplers.md#suggestions",
    "learn_from": "samplers.md#what-other-studies-found",
}
"""Where the guide explains a field of a study."""

PAGES_OF_TUNERS = {
    "async_hyperband": "tuners/async-hyperband.md",
    "early_term": "tuners/early-term.md",
    "custom": "tuners/writing.md",
}
"""Names that differ from the name of their kind."""


def lines_of_table(header: str, rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """A Markdown table, and the empty line behind it."""
    yield header
    yield "|---" * (header.count("|") - 1) + "|"
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |"
    yield ""


# ------------------------------------------------------------------------------------------------------- study fields


def study_fields() -> Iterator[str]:
    """The page of the fields of study files."""
    yield from ("# Fields of a study file", "", MARK, "")
    yield "All fields, with what each must be. [Study files](spaces-and-studies.md) explains them by question. `metric`"
    yield "and `mode` may be left out beside `metrics`, and the tuners `trials` and `external` have no `space`."
    yield ""
    fields = StudySpec.model_fields
    in_order = [*FIRST, *(name for name in fields if name not in FIRST)]
    rows = ((f"`{name}`", *_described(fields[name]), _more(name)) for name in in_order)
    yield from lines_of_table("| field | needed | default | meaning | guide |", rows)
    yield from ("## Fields of tuners", "", "`kind` names the tuner. Each has these fields.", "")
    for kind, tuner in KINDS.items():
        yield from _tuner(kind, tuner)
    yield from ("## Other names", "", "Names of other tools are understood, too.", "")
    names = ((f"`{name}`", ", ".join(f"`{other}`" for other in others)) for name, others in OTHER_NAMES.items())
    yield from lines_of_table("| name | also |", names)
    yield "`direction` takes `maximize` and `minimize`; `maximize: val_accuracy` says metric and mode in one, and"
    yield "`minimize: true` the mode alone. `n_trials` may stand beside the tuner's fields or the study's. A field that"
    yield from ("is given twice is refused.", "")
    yield from ("## Next", "", "- [Study files](spaces-and-studies.md) by question, [sequences](sequences.md),")
    yield "  and [tuners compared](tuners/index.md)."


def _described(field: FieldInfo) -> tuple[str, str, str]:
    """Whether a field is needed, its default, and its meaning."""
    default = "" if field.is_required() or field.default is None else f"`{json.dumps(field.get_default())}`"
    return "yes" if field.is_required() else "no", default.replace('"', ""), field.description or ""


def _more(name: str) -> str:
    return f"[more]({MORE[name]})" if name in MORE else ""


def _tuner(kind: str, tuner: type[TunerSpec]) -> Iterator[str]:
    page = PAGES_OF_TUNERS.get(kind, f"tuners/{kind}.md")
    more = f" [Its page]({page})." if (DOCS / page).exists() else ""
    yield from (f"### `{kind}`", "", (tuner.__doc__ or "").strip().partition("\n")[0] + more, "")
    fields = tuner.model_fields
    rows = ((f"`{name}`", *_described(fields[name])) for name in fields if name != "kind")
    if len(fields) > 1:
        yield from lines_of_table("| field of the tuner | needed | default | meaning |", rows)


# ----------------------------------------------------------------------------------------------------------- commands


def commands() -> Iterator[str]:
    """The page of the commands and their options."""
    yield from ("# Commands and options", "", MARK, "")
    yield "What `stagetree COMMAND --help` prints, for all commands. [The command line](command-line.md) explains them."
    yield ""
    main: Any = get_command(command_line)
    listed = {name: each for name, each in main.commands.items() if name != "help"}
    for group in dict.fromkeys(each.rich_help_panel for each in listed.values()):
        yield from (f"## {group}", "")
        for name, each in listed.items():
            if each.rich_help_panel == group:
                yield from _command(f"stagetree {name}", each)
    yield from ("## Next", "", "- [The command line](command-line.md): what the commands are for, exit codes, and the")
    yield "  result document."


def _command(name: str, command: Any) -> Iterator[str]:
    inner: Mapping[str, Any] = getattr(command, "commands", {})
    if "show" in inner:
        command, inner = inner["show"], {each: inner[each] for each in inner if each != "show"}
    yield from (f"### `{name}`", "", *_prose(command.help or ""), "")
    rows = [_parameter(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
    if rows and not hasattr(command, "commands"):
        yield from lines_of_table("| argument or option | default | meaning |", rows)
    for each, nested in inner.items():
        yield from _command(f"{name} {each}", nested)


def _prose(text: str) -> Iterator[str]:
    """The paragraphs of a help text, without the example that ends it."""
    for paragraph in text.partition("\b")[0].strip().split("\n\n"):
        yield " ".join(paragraph.split())


def _parameter(parameter: Any) -> tuple[str, str, str]:
    is_option = parameter.opts[0].startswith("-")
    names = [*parameter.opts, *parameter.secondary_opts] if is_option else [parameter.metavar or parameter.name.upper()]
    takes = "" if not is_option or getattr(parameter, "is_flag", False) else f" {_metavar(parameter)}"
    names[-1] += takes
    default = parameter.default
    is_shown = default not in (None, False, (), []) and not callable(default) and parameter.show_default is not False
    return ", ".join(f"`{name}`" for name in names), f"`{_plain(default)}`" if is_shown else "", parameter.help or ""


def _metavar(parameter: Any) -> str:
    choices = getattr(parameter.type, "choices", None)
    if parameter.metavar:
        return str(parameter.metavar)
    return "|".join(_plain(choice) for choice in choices) if choices else str(parameter.type.name).upper()


def _plain(value: Any) -> str:
    return str(getattr(value, "value", value))


# --------------------------------------------------------------------------------------------------------------- REST


def rest_routes() -> Iterator[str]:
    """The page of the routes of the API."""
    yield from ("# REST routes", "", MARK, "")
    yield "All routes, as `/openapi.json` of a server has them. [REST](rest-api.md) has examples, pages and errors."
    yield ""
    services: Any = SimpleNamespace(hosts=(), policy=AccessPolicy(), doorkeeper=None)
    document = make_app(services).openapi()
    routes = [(method, path, route) for path, methods in document["paths"].items() for method, route in methods.items()]
    for tag in dict.fromkeys(route["tags"][0] for _, _, route in routes):
        yield from (f"## {tag.capitalize()}", "")
        for method, path, route in routes:
            if route["tags"][0] == tag:
                yield from _route(f"{method.upper()} {path}", route)
    yield from ("## Next", "", "- [REST](rest-api.md) by example, [tokens and scopes](access.md), and")
    yield "  [the same in Python](sdk.md)."


def _route(name: str, route: Json) -> Iterator[str]:
    yield from (f"### `{name}`", "", *_sentences(f"{route['summary']}.", route.get("description", "")), "")
    parameters = [each for each in route.get("parameters", ()) if each["in"] != "path"]
    rows = ((f"`{each['name']}`", each["in"], _type(each["schema"]), each["description"]) for each in parameters)
    if parameters:
        yield from lines_of_table("| parameter | in | type | meaning |", rows)
    body = f"Body: {_content(route['requestBody'])}. " if "requestBody" in route else ""
    answers = ", ".join(_answer(status, answer) for status, answer in route["responses"].items() if status < "400")
    refusals = ", ".join(status for status in route["responses"] if status >= "400")
    yield f"{body}Answers: {answers}." + (f" Refusals: {refusals}." if refusals else "")
    yield ""


def _sentences(summary: str, description: str) -> Iterator[str]:
    yield f"{summary} {' '.join(description.split())}".strip()


def _answer(status: str, answer: Json) -> str:
    content = _content(answer)
    return f"{status} {content}".strip()


def _content(part: Json) -> str:
    """The schemas or media types of a body or an answer."""
    media = part.get("content", {})
    return " or ".join(dict.fromkeys(_type(each.get("schema", {})) or f"`{name}`" for name, each in media.items()))


def _type(schema: Json) -> str:
    """A schema in a word or two, empty where it says nothing."""
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(each) for each in schema["anyOf"] if each.get("type") != "null"))
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if schema.get("type") == "array":
        return f"several: {_type(schema.get('items', {})) or 'any'}"
    return str(schema.get("type", ""))


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "study-fields.md": study_fields,
    "commands.md": commands,
    "rest-routes.md": rest_routes,
}


def page(name: str) -> str:
    """A page as it must be."""
    return "\n".join(PAGES[name]()) + "\n"


if __name__ == "__main__":
    for name in PAGES:
        (DOCS / name).write_text(page(name))
