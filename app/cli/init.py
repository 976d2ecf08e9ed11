"""`stagetree init`: a study file and a trainer to start from, copied from an example."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from app.cli.errors import CONFLICT, fail
from app.cli.extras import is_installed

STUDY = "study.yaml"


def examples_folder() -> Path:
    """The folder of the examples. They lie beside the package, or inside it once it is installed."""
    package = Path(__file__).parents[1]
    inside = package / "examples"
    return inside if inside.is_dir() else package.parent / "examples"


class StartingPoint(StrEnum):
    """An example to start from."""

    digits = "digits"
    charlm = "charlm"
    script = "script"
    hf = "hf"
    lightning = "lightning"


class StartingFiles(NamedTuple):
    """The files of an example, besides its study file, and the modules that it imports."""

    what: str
    trainer: str
    data: tuple[str, ...] = ()
    modules: tuple[str, ...] = ("torch",)
    extras: str = "all"


TEMPLATES = {
    StartingPoint.digits: StartingFiles(
        "a small network on images of digits", "trainer.py", modules=("torch", "sklearn")
    ),
    StartingPoint.charlm: StartingFiles(
        "a language model, of which decays share a trunk", "trainer.py", ("alice.txt",)
    ),
    StartingPoint.script: StartingFiles("a script that keeps its training loop", "train.py", ("alice.txt",)),
    StartingPoint.hf: StartingFiles(
        "a script with the Trainer of Transformers",
        "train.py",
        modules=("torch", "transformers", "accelerate"),
        extras="all,integrations",
    ),
    StartingPoint.lightning: StartingFiles(
        "a LightningModule as it is",
        "trainer.py",
        modules=("torch", "sklearn", "lightning"),
        extras="all,integrations",
    ),
}

From = Annotated[
    StartingPoint,
    typer.Option("--from", help="; ".join(f"{name}: {template.what}" for name, template in TEMPLATES.items()) + "."),
]

Folder = Annotated[Path, typer.Argument(metavar="[FOLDER]", help="The folder to write to; by default this one.")]


def init(start: From = StartingPoint.digits, folder: Folder = Path()) -> None:
    """Write a study file and a trainer to start from. Overwrites nothing.

    \b
    Example:  stagetree init --from script mine
    """
    template = TEMPLATES[start]
    names = (STUDY, template.trainer, *template.data)
    if taken := [str(folder / name) for name in names if (folder / name).exists()]:
        are = "is" if len(taken) == 1 else "are"
        fail(f"{', '.join(taken)} {are} there already, so nothing was written: name another folder", CONFLICT)
    _copy(examples_folder() / start, folder, names)
    print(f"Wrote {', '.join(str(folder / name) for name in names)}.")
    if not all(map(is_installed, template.modules)):
        print(f"It needs more than is installed: pip install 'stagetree[{template.extras}]'")
    named = "" if template.trainer == "trainer.py" else f" --trainers {template.trainer}"
    there = [f"cd {shlex.quote(str(folder))}"] if folder != Path() else []
    commands = [f"stagetree {verb} {STUDY}{named}" for verb in ("preview", "check", "run")]
    print("\nNext:", *(f"  {command}" for command in (*there, *commands)), sep="\n")


def _copy(source: Path, folder: Path, names: tuple[str, ...]) -> None:
    """Copy files of an example. The commands in their comments name files of the checkout, so they lose the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        text = (source / name).read_text(encoding="utf-8")
        (folder / name).write_text(text.replace(f"examples/{source.name}/", ""), encoding="utf-8")
