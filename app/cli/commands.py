"""All commands, in groups, as `stagetree --help` lists them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from app.cli import tokens, trials
from app.cli.api import api
from app.cli.archive import archive
from app.cli.audit import audit
from app.cli.backup import backup, restore
from app.cli.branch import branch, soup
from app.cli.check import check, check_tuner
from app.cli.debug import debug
from app.cli.delete import delete, erase, gc
from app.cli.doctor import doctor
from app.cli.environment import environment
from app.cli.errors import USAGE, fail, parameter_message
from app.cli.events import events
from app.cli.export import export
from app.cli.import_study import import_
from app.cli.open import open
from app.cli.preview import preview
from app.cli.replay import replay
from app.cli.report import film, report
from app.cli.run import run, submit
from app.cli.sinks import sinks
from app.cli.slots import slots
from app.cli.studies import studies
from app.cli.study_actions import cancel, pause, reopen, resume, retry, strike
from app.cli.study_annotations import note, tag
from app.cli.suggest import sampler, suggest
from app.cli.trainers import trainers
from app.cli.trial import logs, trial
from app.cli.up import up
from app.cli.watch import wait, watch
from app.cli.weights import weights
from app.cli.workers import worker, workers

EPILOG = "stagetree COMMAND --help says more, with an example. The guide: docs/command-line.md"

OTHER_WORDS = {
    "best": "trials ID --sort value",
    "dashboard": "open",
    "label": "tag ID TAG",
    "list": "studies",
    "ls": "studies",
    "optimize": "run STUDY.yaml",
    "show": "trial ID N",
    "start": "run STUDY.yaml",
    "status": "studies",
    "stop": "cancel ID",
    "ui": "open",
}
"""Names that other tools use, and the commands they correspond to."""


class Grouped(TyperGroup):
    """Help with the commands in groups, each with its full sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            sentence = (command.help or "").strip().partition("\n")[0]
            groups.setdefault(command.rich_help_panel or "", []).append((name, sentence))
        for group, rows in groups.items():
            with formatter.section(group):
                formatter.write_dl(rows)

    def get_command(self, ctx: Any, name: str) -> Any:
        if name in OTHER_WORDS and name not in self.commands:
            fail(f"there is no command {name}: `stagetree {OTHER_WORDS[name]}` is meant for that", USAGE)
        return super().get_command(ctx, name)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = parameter_message(error)
            raise


app = typer.Typer(
    name="stagetree",
    cls=Grouped,
    help="Hyper-parameter search that trains what trials share only once.\n\nBegin with: stagetree run study.yaml",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

GROUPS: dict[str, tuple[Callable[..., Any], ...]] = {
    "Run studies": (run, preview, import_, up, submit, watch, wait),
    "Look at studies": (
        open,
        studies,
        trial,
        logs,
        debug,
        events,
        environment,
        replay,
        sampler,
        audit,
        export,
        report,
        film,
        weights,
    ),
    "Change studies": (pause, resume, reopen, cancel, retry, branch, soup, suggest, note, tag, delete, strike),
    "Run a cluster": (api, worker, workers, sinks, backup, restore),
    "Look at the installation": (slots, trainers, check, check_tuner, gc, archive, erase, doctor),
}

for group, commands in GROUPS.items():
    for command in commands:
        name = command.__name__.strip("_").replace("_", "-")  # `import` is a word of Python's
        app.command(name, rich_help_panel=group, context_settings={"help_option_names": ["-h", "--help"]})(command)
app.add_typer(trials.app, name="trials", rich_help_panel="Look at studies")
app.add_typer(tokens.app, name="token", rich_help_panel="Run a cluster")


def _version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        print(f"stagetree {version('stagetree')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Hyper-parameter search that trains what trials share only once.

    Begin with: stagetree run study.yaml
    """
