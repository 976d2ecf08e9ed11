"""`stagetree import`: a study file from the file of another tool."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from app.cli.errors import USAGE, fail
from app.cli.options import Output
from app.cli.output import Format, print_json

File = Annotated[str, typer.Argument(metavar="FILE", help="A YAML or JSON file, or the URL of a storage of Optuna's.")]
FormatName = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="wandb, optuna, ray, hydra, determined, katib or nni; by default seen by its shape.",
    ),
]
To = Annotated[Path | None, typer.Option("--to", metavar="FILE", help="Write the study file here, not to stdout.")]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="A name for the study.")]
Trainer = Annotated[str | None, typer.Option("--trainer", metavar="NAME", help="The trainer that trains.")]
Metric = Annotated[str | None, typer.Option("--metric", metavar="NAME", help="The metric that decides.")]
Mode = Annotated[str | None, typer.Option("--mode", metavar="max|min", help="Whether more or less of it is better.")]
Steps = Annotated[
    int | None, typer.Option("--max-steps", metavar="N", min=1, help="For how many steps a trial is trained.")
]
Trials = Annotated[
    int | None, typer.Option("--num-trials", metavar="N", min=1, help="How many configurations are tried.")
]


def import_(
    file: File,
    format: FormatName = None,
    to: To = None,
    name: Name = None,
    trainer: Trainer = None,
    metric: Metric = None,
    mode: Mode = None,
    max_steps: Steps = None,
    num_trials: Trials = None,
    output: Output = Format.table,
) -> None:
    """Turn a sweep or search space of another tool into a study file.

    Nothing is guessed and nothing is dropped: a field without a counterpart is named, with its place and a remedy.

    \b
    Example:  stagetree import sweep.yaml --trainer digits --max-steps 20 --to study.yaml
    """
    from stagetree.errors import StagetreeError
    from stagetree.importers import NotImported, import_study

    given = {"name": name, "trainer": trainer, "metric": metric, "mode": mode}
    try:
        imported = import_study(file, format, **given, max_steps=max_steps, num_trials=num_trials)
    except NotImported:
        raise
    except StagetreeError as error:
        fail(f"{file}: {error}", USAGE)
    if to is not None:
        to.write_text(imported.to_yaml(), encoding="utf-8")
        for note in imported.notes:
            print(f"Note: {note}.", file=sys.stderr)
        print(f"Wrote {to}. Next: stagetree preview {to}", file=sys.stderr)
    if output is Format.json:
        print_json({"study": imported.study, "notes": imported.notes})
    elif to is None:
        print(imported.to_yaml(), end="")
