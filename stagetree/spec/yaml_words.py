"""What is wrong with a text that is no YAML, and what would be right: PyYAML speaks of its grammar."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import yaml


class Words(NamedTuple):
    """A sentence about a text, and the line that it is about, from 1 on; None where that is not known."""

    sentence: str
    line: int | None


def words(error: yaml.MarkedYAMLError) -> Words:
    """What PyYAML could not read, for people."""
    context, problem = error.context or "", error.problem or ""
    at, began = _line(error.problem_mark), _line(error.context_mark)
    if "flow" in context and problem.startswith("expected ','"):
        bracket, end = ("[", "]") if "sequence" in context else ("{", "}")
        return Words(f"the {bracket} that is opened here is not closed, or a comma is missing: {end} ends it", began)
    if "quoted scalar" in context and "end of stream" in problem:
        return Words("the quote that is opened here is not closed", began)
    if problem.startswith("could not find expected ':'"):
        return Words("there is no colon behind this word: fields are written as name: value", began)
    for pattern, sentence in _SENTENCES:
        if found := re.search(pattern, problem):
            return Words(sentence.format(*found.groups()), at)
    return Words(": ".join(filter(None, (context, problem))), at)


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
        "this line is indented otherwise than those that it belongs to: the fields of an object, and the entries of a "
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
