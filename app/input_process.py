"""The process in which `app.input_reader` reads what studies name.

Each line of standard input is a request, and each line of standard output its answer, in JSON. The kernel ends the
process if a request takes too long.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from app import input_fingerprints
from app.input_fingerprints import InputMissing, check_allowed, check_readable, hash_of, look

Json = dict[str, Any]


def ready(path: str, folders: Iterable[str]) -> None:
    pass


def content_changed(path: str, folders: Iterable[str], record: Mapping[str, Any]) -> bool:
    """Whether an input differs from its record. Raises `InputMissing`."""
    return input_fingerprints.content_changed(record, folders)


def file_changed(path: str, folders: Iterable[str], sha256: str) -> bool:
    """Whether a file has another hash. Raises `InputMissing`."""
    check_allowed(path, folders)
    return hash_of(path) != sha256


def undeclared_changed(path: str, folders: Iterable[str], record: Mapping[str, Any]) -> bool:
    """Whether an undeclared input differs from its record. Raises `InputMissing`."""
    from app.undeclared_inputs import has_changed  # slow to import

    check_allowed(path, folders)
    return has_changed(record)


def stamp(path: str, folders: Iterable[str]) -> Json:
    """The record of an input without its content. Raises `InputMissing`."""
    return look(path, folders, is_hashed=False)


def record_undeclared(path: str, folders: Iterable[str], paths: Iterable[str]) -> list[Json]:
    """Records of undeclared inputs. path: the first of them."""
    from app import undeclared_inputs

    return undeclared_inputs.record_undeclared(paths)


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        ready,
        look,
        stamp,
        check_readable,
        content_changed,
        file_changed,
        undeclared_changed,
        record_undeclared,
    )
}
"""The operations of requests. Each takes a path, the folders that may be read, and more."""


def answer(request: Json) -> Json:
    """The `value` of an operation, or the `problem`, as an exception's name and text."""
    try:
        return {"value": OPERATIONS[request["operation"]](request["path"], request["folders"], *request["more"])}
    except InputMissing as problem:
        return {"problem": [type(problem).__name__, str(problem)]}


def main() -> None:
    for line in sys.stdin.buffer:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, request["seconds"])
        answered = json.dumps(answer(request))
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.buffer.write(answered.encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
