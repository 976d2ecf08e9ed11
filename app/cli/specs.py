"""Study files as the command line takes them: from a file or stdin, with fields changed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.errors import USAGE, fail

if TYPE_CHECKING:
    from stagetree.limits import Limits
    from stagetree.spec import StudySpec

Json = dict[str, Any]
STDIN = Path("/dev/stdin")


def load(path: Path, changes: Sequence[str], limits: Limits | None) -> StudySpec:
    """The study in a file, `-` for stdin, with fields changed; without limits where a server has its own.

    Raises `SpecError`.
    """
    from app.simulation.changing import changed
    from stagetree.spec import SpecError, StudySpec
    from stagetree.spec.file import read
    from stagetree.spec.reading import absolute

    place = STDIN if str(path) == "-" else path
    try:
        values = read(place)
        if changes and isinstance(values, dict):
            values = changed(values, changes_of(changes, "--set"))
        folder = Path.cwd() if place is STDIN else place.parent
        return StudySpec.from_dict(absolute(values, folder) if isinstance(values, dict) else values, limits)
    except SpecError as error:
        source = error.source or str(place)
        raise SpecError(error.problems, source.replace(str(STDIN), "stdin")) from None


def changes_of(given: Sequence[str], option: str) -> Json:
    """What `--set tuner.max_steps=20` says, by dotted path; values are JSON, or else strings."""
    found: Json = {}
    for each in given:
        path, separator, value = each.partition("=")
        if not separator or not path:
            fail(f"{option}: must be FIELD=VALUE, such as tuner.max_steps=20, got {each!r}", USAGE)
        try:
            found[path] = json.loads(value)
        except ValueError:
            found[path] = value
    return found
