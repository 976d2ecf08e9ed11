"""Studies that were written for other tools: sweeps, experiments and search spaces.

    imported = import_study("sweep.yaml", trainer="digits", max_steps=20)
    Path("study.yaml").write_text(imported.to_yaml())
    first = configurations_from_optuna(optuna_study, best=5)

Nothing is guessed and nothing is dropped: each field is translated, named in a note with what to write for it, or
refused. The formats are in `stagetree.importers.formats`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagetree.importers.draft import Draft, Given, Imported, NotImported, finish
from stagetree.importers.formats import FORMATS, read_draft
from stagetree.importers.optuna_study import configurations_from_optuna, read_optuna

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
