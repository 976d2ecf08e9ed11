"""Study files of the command line: read from a file or stdin, with changed fields, and advice on them."""

from __future__ import annotations

import ast
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from os.path import abspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from app.cli.errors import USAGE, fail
from app.cli.extras import require

if TYPE_CHECKING:
    from app.registry import TrainerSource
    from stagetree.limits import Limits
    from stagetree.spec import StudySpec

Json = dict[str, Any]

STDIN = Path("/dev/stdin")


def load(path: Path, changes: Sequence[str], limits: Limits | None) -> StudySpec:
    """The study in a file, or in stdin for `-`, with changed fields. Raises `SpecError`.

    limits: None if a server checks its own.
    """
    from stagetree.spec import SpecError, StudySpec
    from stagetree.spec.file import change_fields, read
    from stagetree.spec.trainer_inputs import absolute

    place = STDIN if str(path) == "-" else path
    try:
        values = read(place)
        if changes and isinstance(values, dict):
            values = change_fields(values, changes_of(changes, "--set"))
        folder = Path.cwd() if place is STDIN else place.parent
        return StudySpec.from_dict(absolute(values, folder) if isinstance(values, dict) else values, limits)
    except SpecError as error:
        source = error.source or str(place)
        raise SpecError(error.problems, source.replace(str(STDIN), "stdin")) from None


def load_to_run(path: Path, changes: Sequence[str], *, is_here: bool, is_checked: bool) -> StudySpec:
    """The study with this machine's limits if it runs here, and without `check` on request. Raises `SpecError`."""
    from app.settings import settings

    spec = load(path, changes, settings().limits if is_here else None)
    return spec if is_checked else spec.model_copy(update={"check": False})


def changes_of(options: Sequence[str], option: str) -> Json:
    """The changes of `--set tuner.max_steps=20` by dotted path; values are written as in a study file."""
    from stagetree.spec.file import parse_value

    changes: Json = {}
    for each in options:
        path, separator, value = each.partition("=")
        if not separator or not path:
            fail(f"{option}: must be FIELD=VALUE, such as tuner.max_steps=20, got {each!r}", USAGE)
        try:
            changes[path] = parse_value(value)
        except ValueError as error:
            fail(f"{option} {path}={value}: {error}", USAGE)
    return changes


def check_tuner(spec: StudySpec) -> None:
    """Raises `SpecError` for a study whose tuner cannot begin, as a server does.

    Raises `MissingExtra` if the study's tuner or sampler computes by a package that is not installed. A preview takes
    random configurations for a sampler that learns, so it needs nothing for that.
    """
    from app.service import study_checks
    from app.simulation.virtual_run import remove_guidance
    from stagetree.spec import StudySpec

    is_predicting = spec.tuner.kind in ("pop", "early_term") or spec.stop_hopeless is not None
    if is_predicting or getattr(spec.tuner, "sampler", "") in ("sobol", "halton"):
        require("numpy", "scipy")
    study_checks.check_tuner(StudySpec(**remove_guidance(spec.to_json())))


def trainer_advice(spec: StudySpec, source: TrainerSource) -> list[str]:
    """Advice on hyper-parameters that a script never reads, and on files that `inputs` should list."""
    from app.registry import unread_hyper_parameters

    return [*unread_hyper_parameters(spec, source), *undeclared_advice(spec, source)]


DATA = re.compile(r"\.(arrow|bin|csv|feather|gz|h5|hdf5|jsonl|mat|npy|npz|parquet|tar|tsv|txt|zip|zst)")
"""The suffixes of data files in source code. Other paths there are often written, not read."""

MOST_NAMED = 3


def undeclared_advice(spec: StudySpec, source: TrainerSource) -> list[str]:
    """The missing `inputs`, by the trainer's arguments and source, in at most one sentence."""
    listed = [Path(abspath(each)) for each in spec.inputs]
    found: dict[Path, str] = {}
    for name, place in chain(_argument_paths(spec), _source_paths(source)):
        path = Path(abspath(name))
        if not any(path.is_relative_to(each) for each in listed):
            found.setdefault(path, f"{name} ({place})")
    if not found:
        return []
    named = list(found.values())[:MOST_NAMED]
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return [
        f"`inputs` does not name {', '.join(named)}{more}: if such a file changes, results of the one before are "
        "shown for it; what `inputs` names is looked at"
    ]


def missing_advice(spec: StudySpec) -> list[str]:
    """The study's paths that are missing on this machine, in at most one sentence. A server may have them."""
    begin = spec.begin_from
    named = {f"inputs[{number}]": path for number, path in enumerate(spec.inputs)}
    named |= {f"begin_from.{field}": path for field in ("file", "dcp") if (path := getattr(begin, field, None))}
    absent = [f"{path} ({field})" for field, path in named.items() if not _is_there(path)]
    return [f"not on this machine: {', '.join(absent)}; `run` refuses the study here"] if absent else []


def _argument_paths(spec: StudySpec) -> Iterator[tuple[str, str]]:
    """Files and folders in `trainer_args`; in `runtime_args` files alone, since a folder may be for results."""
    for field, arguments in (("trainer_args", spec.trainer_args), ("runtime_args", spec.runtime_args)):
        for argument, value in arguments.items():
            for name in filter(_is_there, _strings(value)):
                if field == "trainer_args" or Path(name).is_file():
                    yield name, f"{field}.{argument}"


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        yield from chain.from_iterable(map(_strings, value.values() if isinstance(value, dict) else value))


def _source_paths(source: TrainerSource) -> Iterator[tuple[str, str]]:
    from stagetree.source.syntax import syntax_tree
    from stagetree.source.versions import module_files

    for file, content in module_files(source.path).items():
        for node in ast.walk(syntax_tree(content)):
            if isinstance(node, ast.Constant) and _is_data(name := node.value):
                yield name, f"{Path(file).name}, line {node.lineno}"


def _is_data(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and DATA.fullmatch(Path(value).suffix) is not None and _is_there(value)


def _is_there(name: str) -> bool:
    with suppress(OSError, ValueError):  # not a path
        return bool(name.strip()) and Path(name).exists()
    return False


def print_final_advice(spec: StudySpec, study: dict[str, Any]) -> None:
    """Print advice on a completed study: on steps that no trial reached, ties, and training that made it worse."""
    from stagetree.advice import afterthoughts

    if study["state"] == "completed":
        furthest = max((trial["trained"] for trial in study["trials"]), default=0)
        late = [] if study["ending"] else afterthoughts(spec, furthest)  # else it says itself why no trial was longer
        print_advice([*late, *tie_advice(study), *worsening_advice(study, furthest)])


def tie_advice(study: Json) -> Iterator[str]:
    """Advice on the first rung where most results are equal and only some of these were promoted."""
    mostly_tied = (rung for rung in study["progress"]["rungs"] if rung["tied"] > rung["arrived"] / 2)
    for rung in islice(mostly_tied, 1):
        by = "chance" if study["spec"]["tuner"].get("ties") == "seed" else "number"
        yield (
            f"{rung['tied']} of {rung['arrived']} results at step {rung['steps']} are equal, so promotions among them "
            f"are by {by}: a finer metric, such as the loss, or a first rung after that step tells them apart"
        )


def worsening_advice(study: Json, furthest: int) -> Iterator[str]:
    """Advice if the longest trials were better at earlier steps, and a shorter trial is the best."""
    longest = [trial for trial in study["trials"] if trial["trained"] == furthest and trial["last"]]
    is_judged_at_its_end = study["value"] == "last" and not study.get("metrics") and study["best"]
    if not is_judged_at_its_end or not longest or study["best"]["steps"] >= furthest:
        return
    if all(trial["best"]["step"] < trial["last"]["step"] for trial in longest):
        trial = longest[0]
        yield (
            f"training longer made it worse: trial {trial['trial']} had its best {study['metric']} at step "
            f"{trial['best']['step']} of {furthest}; value: best takes each trial's best result, fewer steps cost less"
        )


def report_submission(study: Json, *, is_quiet: bool = False) -> str:
    """The id of a submitted study. Prints what its sampler has learned from other studies."""
    for sentence in () if is_quiet else study.get("learned", ()):
        print(f"Learnt: {sentence}.", file=sys.stderr)
    return str(study["study"])


def print_advice(sentences: list[str]) -> None:
    """Print advice with the progress."""
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else 0
    for sentence in sentences:
        text = f"Advice: {sentence}."
        print(textwrap.fill(text, width) if width else text, file=sys.stderr)
