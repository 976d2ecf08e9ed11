"""The arguments and options that commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cli.errors import finite
from app.cli.output import Format, ListFormat
from app.domain.slots import MOST_SHARES

MOST_SLOTS = 256
"""Of one machine: each is a process of some hundred megabytes."""

StudyFile = Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="The study file; - reads it from stdin.")]
StudyId = Annotated[
    str, typer.Argument(metavar="ID", help="The study: its id, the beginning of it, its name, or `last`.")
]
TrialNumber = Annotated[int, typer.Argument(metavar="N", min=0, help="The trial's number.")]
Output = Annotated[Format, typer.Option("-o", "--output", help="Print a table, or one JSON document.")]
ListOutput = Annotated[ListFormat, typer.Option("-o", "--output", help="Print a table, one JSON document, or CSV.")]
Server = Annotated[
    str | None, typer.Option("--server", metavar="URL", help="A running server; by default that of STAGETREE_URL.")
]
Store = Annotated[
    Path | None,
    typer.Option("--dir", metavar="FOLDER", help="Read this store, without a server; by default .stagetree here."),
]
Slots = Annotated[
    int | None,
    typer.Option("--slots", metavar="N", min=1, max=MOST_SLOTS, help="Slots; by default the GPUs, else the CPU cores."),
]
SlotsPerGpu = Annotated[
    int | None,
    typer.Option("--slots-per-gpu", metavar="N", min=1, max=MOST_SHARES, help="So many slots share each GPU."),
]
Trainers = Annotated[
    list[str] | None,
    typer.Option("--trainers", metavar="FILE.py", help="A Python file with trainers; may be repeated."),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Change the study file: tuner.max_steps=20; may be repeated."),
]
Sinks = Annotated[
    list[str] | None,
    typer.Option(
        "--to", metavar="SINK", help="Write to tensorboard:DIR, wandb:PROJECT or mlflow:URI meanwhile; may be repeated."
    ),
]
Plain = Annotated[bool, typer.Option("--plain", help="Lines instead of a live view.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="No progress.")]
Strict = Annotated[bool, typer.Option("--strict", help="End with exit code 5 where trials failed.")]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", min=0, callback=finite, help="Give up after so long."),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Need no token: every caller may do everything.")]
