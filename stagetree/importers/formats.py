"""The formats that can be imported, and how each is recognised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from stagetree.errors import StagetreeError
from stagetree.importers import determined, hydra, katib, nni, optuna_study, ray_tune, wandb
from stagetree.importers.draft import Draft, NotImported
from stagetree.sequences import SequenceError, did_you_mean
from stagetree.spec import Problem
from stagetree.spec.file import StudyLoader, read

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
