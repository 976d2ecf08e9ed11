"""Studies that were written for other tools: sweeps, experiments and search spaces.

    imported = import_study("sweep.yaml", trainer="digits", max_steps=20)
    Path("study.yaml").write_text(imported.to_yaml())
    first = configurations_from_optuna(optuna_study, best=5)

Nothing is guessed and nothing is dropped: each field is translated, named in a note with what to write for it, or
refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from stagetree.errors import StagetreeError
from stagetree.importers import determined, hydra, katib, nni, optuna_study, ray_tune, wandb
from stagetree.importers.draft import Draft, Given, Imported, NotImported, finish
from stagetree.importers.optuna_study import configurations_from_optuna, read_optuna
from stagetree.sequences import SequenceError, did_you_mean
from stagetree.spec import Problem
from stagetree.spec.file import StudyLoader, read

if TYPE_CHECKING:
    import optuna


__all__ = [
    "FORMATS",
    "Draft",
    "Imported",
    "NotImported",
    "configurations_from_optuna",
    "from_wandb",
    "import_study",
    "space_from_optuna",
]

Json = dict[str, Any]


def import_study(
    source: Any,
    format: str | None = None,
    *,
    name: str | None = None,
    trainer: str | None = None,
    metric: str | None = None,
    mode: str | None = None,
    max_steps: int | None = None,
    num_trials: int | None = None,
) -> Imported:
    """The study that another tool's file, search space or study describes.

    source: the path of a YAML or JSON file; what such a file holds; a study of Optuna, or the URL of its storage; or a
    space of Ray Tune. format: one of `FORMATS`; by default the one whose shape it has. The others complete
    the file, or replace its values; steps are calls of the trainer's `train`.

    Raises `NotImported`, which names everything that is missing or has no counterpart, and `StagetreeError` for a
    source of no format.
    """
    given = Given(name, trainer, metric, mode, max_steps, num_trials)
    try:
        return finish(read_draft(source, format), given)
    except NotImported as error:
        raise NotImported(error.problems, str(source) if isinstance(source, str | Path) else "") from None


def from_wandb(
    sweep: str | Path | Mapping[str, Any],
    *,
    metric: str | None = None,
    mode: str | None = None,
    max_steps: int | None = None,
    num_trials: int | None = None,
) -> Json:
    """The fields of a study from a W&B sweep, as a YAML file or dict, but for its trainer and name.

    What the study leaves out is a warning each. Raises `NotImported`.
    """
    given = Given(None, None, metric, mode, max_steps, num_trials)
    imported = finish(read_draft(sweep, "wandb"), given, needs_trainer=False)
    for note in imported.notes:
        warnings.warn(note, stacklevel=2)
    return {field: value for field, value in imported.study.items() if field != "name"}


def space_from_optuna(study: optuna.Study) -> Json:
    """The space of an Optuna study: what its trials have drawn, with `when` for what only some of them have.

    Raises `NotImported`.
    """
    draft = read_optuna(study)
    fields = {"", *(name for trial in study.trials for name in trial.params)}
    problems = [each for each in draft.problems if each.field in fields]
    if problems:
        raise NotImported(problems)
    return draft.space


_TIME = "tag:yaml.org,2002:timestamp"


class Loader(StudyLoader):
    """The plain values of YAML 1.1, without dates; and the checks of study files, such as for a key written twice.

    In YAML 1.1, as other tools read it, yes and on are true. Study files are YAML 1.2. Numbers such as 1e-4, which
    PyYAML reads as a text, are numbers here: each of these files means one.
    """

    yaml_implicit_resolvers: dict[str, Any] = {  # noqa: RUF012
        letter: [
            *(
                (tag, pattern)
                for tag, pattern in yaml.SafeLoader.yaml_implicit_resolvers.get(letter, [])
                if tag != _TIME
            ),
            *StudyLoader.yaml_implicit_resolvers.get(letter, []),
        ]
        for letter in yaml.SafeLoader.yaml_implicit_resolvers.keys() | StudyLoader.yaml_implicit_resolvers.keys()
    }


for _tag in ("bool", "int", "float"):
    _name = f"tag:yaml.org,2002:{_tag}"
    Loader.add_constructor(_name, yaml.SafeLoader.yaml_constructors[_name])


class ImportFormat(NamedTuple):
    """A format: its title, a test for its shape, and its reader."""

    title: str
    recognises: Callable[[Any], bool]
    read: Callable[[Any], Draft]


FORMATS = {
    "katib": ImportFormat("an experiment of Katib", katib.is_katib, katib.read_katib),
    "determined": ImportFormat("an experiment of Determined", determined.is_determined, determined.read_determined),
    "hydra": ImportFormat("a multirun sweep of Hydra", hydra.is_hydra, hydra.read_hydra),
    "nni": ImportFormat("a search space or experiment of NNI", nni.is_nni, nni.read_nni),
    "ray": ImportFormat("a space of Ray Tune", ray_tune.is_ray, ray_tune.read_ray),
    "optuna": ImportFormat("a study of Optuna", optuna_study.is_optuna, optuna_study.read_optuna),
    "wandb": ImportFormat("a sweep of W&B", wandb.is_wandb, wandb.read_wandb),
}
"""All formats by name; the first that recognises a content reads it."""


def read_draft(source: Any, name: str | None = None) -> Draft:
    """The draft of a study from a file, or from its content. name: of the format, if known.

    Raises `StagetreeError` if it is of none of them, and `SpecError` for a file that cannot be read.
    """
    if isinstance(source, Path) or (isinstance(source, str) and "://" not in source):
        draft = read_draft(read(Path(source), Loader), name)
        draft.fields.setdefault("name", Path(source).stem)
        return draft
    if name is not None and name not in FORMATS:
        raise StagetreeError(f"format: must be one of {', '.join(FORMATS)}, got {name!r}{did_you_mean(name, FORMATS)}")
    found = [name] if name else [each for each, format in FORMATS.items() if format.recognises(source)]
    if not found:
        raise StagetreeError(f"is none of {', '.join(each.title for each in FORMATS.values())}{_seen(source)}")
    content = optuna_study.load(source) if isinstance(source, str) else source
    return _read(content, FORMATS[found[0]])


def _read(content: Any, format: ImportFormat) -> Draft:
    """Raises `StagetreeError` for a content without the shape of the format, and `NotImported` for a part of it."""
    if not format.recognises(content):
        raise StagetreeError(f"must be {format.title}{_seen(content)}")
    try:
        return format.read(content)
    except SequenceError as error:
        raise NotImported([Problem(error.field, error.problem)]) from None
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        # a list or text instead of an object: such places are too many to check each
        how = "compare its lists and objects with the format's manual"
        raise StagetreeError(f"has another shape than {format.title}, {how} ({error})") from error


def _seen(source: Any) -> str:
    names = ", ".join(list(map(str, source))[:5]) if isinstance(source, Mapping) else ""
    return f": it has {names}; say which with format" if names else ""
