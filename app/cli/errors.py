"""Errors of the command line: a sentence on stderr, and an exit code for scripts.

With `-o json`, stdout has the error as a problem document (RFC 9457), such as the API answers.
"""

from __future__ import annotations

import itertools
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from app.cli.extras import EXTRAS, MissingExtra
from app.cli.output import discard_stdout, escape_control, print_json, redact


def parameter_message(error: typer.BadParameter) -> str:
    """The message of an error about a parameter, with ranges in our own words."""
    param: Any = error.param
    if param is None:
        return error.message
    if not error.message:
        return getattr(param, "help", None) or ""
    wrong = re.match(r"'?(.*?)'? is not (a valid (int|float)|in the range)", error.message)
    if wrong is None or not hasattr(param.type, "min"):
        return error.message
    number = "a whole number" if wrong.group(3) == "int" or "int" in param.type.name else "a number"
    return f"must be {number}{_range_text(param.type)}, got {wrong.group(1)!r}"


def _range_text(type: Any) -> str:
    if type.min is None:
        return f" of at most {type.max}"
    return f" of at least {type.min}" if type.max is None else f" from {type.min} to {type.max}"


def check_finite(value: float | None) -> float | None:
    """The value of an option. Raises `BadParameter` for NaN and infinity."""
    if value is not None and not abs(value) < float("inf"):
        raise typer.BadParameter(f"must be a finite number, got {value}")
    return value


DONE, FAILED, USAGE, NOT_FOUND, CONFLICT, TRIALS_FAILED = 0, 1, 2, 3, 4, 5

UNREACHABLE, TIMEOUT, INTERRUPTED = 69, 124, 130


@contextmanager
def explain_errors() -> Iterator[None]:
    """Report errors that a user can cause or fix as a sentence with an exit code."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRAS:
            raise
        fail(str(MissingExtra(module, EXTRAS[module])), USAGE)
    except Exception as error:
        code = exit_code(error)
        if code is None:
            raise
        if isinstance(error, OSError):
            discard_stdout()
        if isinstance(error, BrokenPipeError):  # the reader has closed the pipe
            sys.exit(code)
        fail(error_text(error), code, _wrong_fields(error))


@contextmanager
def report_early_interrupt() -> Iterator[None]:
    """Exit on Ctrl-C with the message that nothing was submitted, so that nothing needs to be resumed."""
    try:
        yield
    except KeyboardInterrupt:
        print("\nStopped before anything began: no study was submitted.", file=sys.stderr)
        sys.exit(INTERRUPTED)


def fail(text: str, code: int = FAILED, errors: Sequence[Mapping[str, Any]] = ()) -> NoReturn:
    """End with a message. errors: the wrong fields, each with its `field` and `problem`."""
    for line in text.splitlines():
        print(f"stagetree: {redact(escape_control(line))}", file=sys.stderr)
    print_problem(text, code, errors)
    sys.exit(code)


TITLES = {
    FAILED: (500, "Failed"),
    USAGE: (400, "Wrong usage"),
    NOT_FOUND: (404, "Not found"),
    CONFLICT: (409, "Conflict"),
    UNREACHABLE: (503, "No server answers"),
}
"""The HTTP status and the title of a problem by exit code."""


def print_problem(text: str, code: int, errors: Sequence[Mapping[str, Any]] = ()) -> None:
    """Print an error as a problem document, if the command line asks for JSON."""
    if not _wants_json(sys.argv[1:]):
        return
    status, title = TITLES.get(code, TITLES[FAILED])
    problem = {"type": "about:blank", "title": title, "status": status, "detail": redact(text), "exit_code": code}
    print_json(problem | ({"errors": list(errors)} if errors else {}))


def _wants_json(arguments: Sequence[str]) -> bool:
    """Read from the arguments themselves, since the error may be in them."""
    pairs = itertools.pairwise([*arguments, ""])
    return any(each in ("-ojson", "--output=json") for each in arguments) or any(
        option in ("-o", "--output") and value == "json" for option, value in pairs
    )


def error_text(error: Exception) -> str:
    """The error's message: a server's detail or its problems by field, not the HTTP title."""
    from stagetree.errors import ProblemError

    if isinstance(error, OSError) and error.strerror:
        return ": ".join(str(part) for part in (error.filename, error.strerror) if part)
    if not isinstance(error, ProblemError):
        return str(error)
    fields = [": ".join(filter(None, (each.get("field"), each.get("problem")))) for each in error.errors]
    return "\n".join(fields) or error.detail or error.title


def _wrong_fields(error: Exception) -> Sequence[Mapping[str, Any]]:
    """The wrong fields of a study file, or of a request to a server."""
    if problems := getattr(error, "problems", None):
        return [{"field": each.field, "problem": each.problem} for each in problems]
    return getattr(error, "errors", ())


CODES = {
    "app.cli.extras.MissingExtra": USAGE,
    "stagetree.spec.errors.SpecError": USAGE,
    "app.registry.TrainerFileError": USAGE,
    "app.settings.SettingsError": USAGE,
    "app.tuner_files.TunerFileError": USAGE,
    "app.service.html_report.NotALog": USAGE,
    "app.service.services.InvalidField": USAGE,
    "app.service.services.HttpProblem": FAILED,
    "app.service.health.NotReady": FAILED,
    "app.domain.terms.Unknown": NOT_FOUND,
    "app.domain.terms.StateConflict": CONFLICT,
    "app.domain.terms.Refused": USAGE,
    "app.embedded.machine.StackFailed": FAILED,
    "app.outages.DatabaseUnavailable": FAILED,
    "app.events.plans.PlanUnusable": FAILED,
    "app.storage.object_store.StoreUnavailable": FAILED,
    "app.simulation.virtual_run.PreviewTooLong": USAGE,
    "stagetree.sinks.base.SinkError": USAGE,
    "stagetree.errors.NotFound": NOT_FOUND,
    "stagetree.errors.Conflict": CONFLICT,
    "stagetree.errors.Invalid": USAGE,
    "stagetree.errors.Unreachable": UNREACHABLE,
    "stagetree.errors.StagetreeError": FAILED,
    "builtins.OSError": FAILED,
}
"""By qualified name, since the module of an error may not be installed."""


def exit_code(error: Exception) -> int | None:
    """The exit code for an error; None for an internal error, which shows its traceback."""
    names = (f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__)
    return next((CODES[name] for name in names if name in CODES), None)


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """End the block by an exception on SIGTERM and SIGHUP, so that everything is cleaned up."""

    def end(number: int, _: object) -> NoReturn:
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
