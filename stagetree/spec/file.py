"""Read study files, and change their fields by dotted path.

PyYAML implements YAML 1.1, which reads `1e-4` as a string, `no` as false, `1:30` as ninety and `010` as eight. With the
core schema of YAML 1.2 they are a number, a string, a string and ten. Duplicate keys and NaN are errors, and every
error names its line.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from yaml.constructor import ConstructorError

from stagetree.spec.errors import Problem, SpecError
from stagetree.spec.tuners import KINDS


def read(path: Path, loader: type[StudyLoader] | None = None) -> Any:
    """The content of the file. loader: by default that of study files. Raises `SpecError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SpecError([Problem("", f"cannot be read: {reason}")], str(path)) from None
    try:
        value = _read_json(text) if path.suffix == ".json" else yaml.load(text, loader or StudyLoader)
    except yaml.MarkedYAMLError as error:
        wrong = _words(error)
        raise SpecError([Problem("", wrong.sentence)], f"{path}:{wrong.line}" if wrong.line else str(path)) from None
    except json.JSONDecodeError as error:
        raise SpecError([Problem("", f"is not JSON: {error.msg}")], f"{path}:{error.lineno}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise SpecError([Problem("", str(error).splitlines()[0])], str(path)) from None
    except RecursionError:
        raise SpecError([Problem("", "must not be nested this deeply")], str(path)) from None
    if value is None:
        raise SpecError([Problem("", "is empty: a study has at least name, trainer, metric and mode")], str(path))
    return value


_NULL = "tag:yaml.org,2002:null"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class StudyLoader(yaml.SafeLoader):
    """YAML with the plain values of the 1.2 core schema."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012, PyYAML's name and type

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = set[str]()
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.tag in _NUMBERS and value.tag == _NULL and keys:
                before, low = list(node.value)[len(keys) - 1]
                written = f"{before.value}: [{low.value}, {key.value}]"
                raise ConstructorError(None, None, f"write {{{written}}}: two numbers are a list", key.start_mark)
            if not isinstance(key.value, str) or key.tag != "tag:yaml.org,2002:str":
                raise ConstructorError(None, None, f"keys must be strings, got {key.value!r}", key.start_mark)
            if key.value in keys:
                raise ConstructorError(None, None, f"the key {key.value!r} is written twice", key.start_mark)
            keys.add(key.value)
            if ":" in key.value and key.style is None and value.value == "" and value.tag == _NULL:
                spaced = key.value.replace(":", ": ")
                raise ConstructorError(None, None, f"write {spaced}, with a space behind the colon", key.start_mark)
        return super().construct_mapping(node, deep)


def _float(loader: StudyLoader, node: Any) -> float:
    text = node.value.lower().replace(".inf", "inf").replace(".nan", "nan")
    if not math.isfinite(float(text)):
        raise ConstructorError(None, None, f"numbers must be finite, got {node.value}", node.start_mark)
    return float(text)


def _int(loader: StudyLoader, node: Any) -> int:
    return int(node.value, {"0x": 16, "0o": 8}.get(node.value[:2], 10))


_PLAIN: dict[str, tuple[str, str, Callable[[StudyLoader, Any], Any] | None]] = {
    "null": (r"~|null|Null|NULL|", "~nN\0", None),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF", None),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789", _int),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
        _float,
    ),
    "merge": (r"<<", "<", None),
}
for _name, (_pattern, _first, _construct) in _PLAIN.items():
    _tag = f"tag:yaml.org,2002:{_name}"
    StudyLoader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), [c.strip("\0") for c in _first])
    if _construct:
        StudyLoader.add_constructor(_tag, _construct)


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that YAML 1.1 or 1.2 would read as something else."""


for _letter, _resolvers in StudyLoader.yaml_implicit_resolvers.items():
    for _tag, _regex in _resolvers:
        _Dumper.add_implicit_resolver(_tag, _regex, [_letter])


def write(values: Any) -> str:
    """The text of a study file, which `read` gives back."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, default_flow_style=None, allow_unicode=True, width=120)


def _read_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            raise ValueError(f"the key {key!r} is written twice")
        fields[key] = value
    return fields


def _refuse(constant: str) -> Any:
    raise ValueError(f"numbers must be finite, got {constant}")


def parse_value(text: str) -> Any:
    """Parse a single value as in a study file: `.01`, `1e-3`, `[0.1, .01]`, `{family: linear, ...}`, JSON, or text.

    Raises `ValueError` if a list, object or quoted text is malformed.
    """
    try:
        return _read_json(text)
    except json.JSONDecodeError:
        pass
    if text[:1] not in _OPENING:
        resolve: Any = StudyLoader("").resolve
        tag = resolve(yaml.ScalarNode, text, (True, False))
        if tag == _TEXT or not text:
            return text
        try:
            return StudyLoader("").construct_object(yaml.ScalarNode(tag, text))
        except ConstructorError as error:
            raise ValueError(error.problem) from None
    try:
        return yaml.load(text, StudyLoader)
    except yaml.MarkedYAMLError as error:
        raise ValueError(_words(error).sentence) from None


_OPENING = ("[", "{", '"', "'")
_TEXT = "tag:yaml.org,2002:str"


def change_fields(spec: Any, changes: Mapping[str, Any]) -> Any:
    """The study file with the values at dotted paths replaced; None removes a field. Raises `SpecError`.

    Changing the kind of the tuner also removes fields that only the previous tuner had.
    """
    copy = deepcopy(spec)
    kind, tuner = changes.get("tuner.kind"), copy.get("tuner")
    if kind in KINDS and isinstance(tuner, dict) and kind != tuner.get("kind"):
        copy["tuner"] = {field: value for field, value in tuner.items() if field in KINDS[kind].model_fields}
    for path, value in changes.items():
        owner, parts = copy, _parts(path)
        while len(parts) > 1 and not (isinstance(owner, dict) and ".".join(parts) in owner):
            owner = owner.setdefault(parts[0], {}) if isinstance(owner, dict) else None
            parts = parts[1:]
        last = ".".join(parts)
        if not isinstance(owner, dict):
            raise SpecError([Problem(path, "cannot be set: its parent is not an object")])
        owner[last] = value
        if value is None:
            del owner[last]
    return copy


def _parts(path: str) -> list[str]:
    """The names in a path such as `tuner.max_steps`, or `space['optimizer.lr'].init`. `params` is the space."""
    parts = [quoted or name for quoted, name in re.findall(r"""\[['"](.+?)['"]\]|([^.\[\]]+)""", path)]
    return ["space", *parts[1:]] if path.startswith("params[") else parts


# ------------------------------------------------------------------------------------------------------------- errors


class _Words(NamedTuple):
    """A sentence about a text, and its line number if known."""

    sentence: str
    line: int | None


def _words(error: yaml.MarkedYAMLError) -> _Words:
    """A readable sentence for a YAML error."""
    context, problem = error.context or "", error.problem or ""
    at, began = _line(error.problem_mark), _line(error.context_mark)
    if "flow" in context and problem.startswith("expected ','"):
        bracket, end = ("[", "]") if "sequence" in context else ("{", "}")
        return _Words(f"the {bracket} that is opened here is not closed, or a comma is missing: {end} ends it", began)
    if "quoted scalar" in context and "end of stream" in problem:
        return _Words("the quote that is opened here is not closed", began)
    if problem.startswith("could not find expected ':'"):
        return _Words("there is no colon behind this word: fields are written as name: value", began)
    for pattern, sentence in _SENTENCES:
        if found := re.search(pattern, problem):
            return _Words(sentence.format(*found.groups()), at)
    return _Words(": ".join(filter(None, (context, problem))), at)


def _line(mark: Any) -> int | None:
    return mark.line + 1 if mark else None


_SENTENCES = (
    (r"found character '\\t'", "there is a tab here: YAML wants spaces"),
    (r"found character ('.') that cannot start", "a value cannot begin with {0}: put it in quotes"),
    (
        "mapping values are not allowed here",
        "a colon is not expected here: put a text with a colon in quotes, and let the fields of an object begin in "
        "one column",
    ),
    (
        "sequence entries are not allowed here",
        "a list cannot begin behind a field's name in this way: write [a, b], or each entry on a line of its own",
    ),
    (
        r"expected <block end>, but found '(?:<block mapping start>|<block sequence start>|-|\?)'",
        "this line has another indentation than its siblings: the fields of an object, and the entries of a "
        "list, begin in one column",
    ),
    (
        r"expected <block end>, but found '(.*)'",
        "the value ends before this: a text with quotes, brackets or commas in it must be in quotes as a whole",
    ),
    (r"content, but found '<stream end>'", "the file ends before a bracket that was opened is closed"),
    (r"content, but found '(.*)'", "a value is missing before this {0}"),
    (r"found another document", "a second document begins here: a study file has one, without a line of ---"),
    (
        r"could not determine a constructor for the tag",
        "values have no tags such as !!python or !name: write the value",
    ),
)
