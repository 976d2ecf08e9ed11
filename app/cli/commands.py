"""All commands, in groups, as `stagetree --help` lists them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from app.cli import audit, check, delete, doctor, events, preview, run, serve, study_actions, weights
from app.cli import trials as looking
from app.cli.errors import USAGE, fail, in_words

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
"""What people call commands that have other names here, and how these are called."""


class Grouped(TyperGroup):
    """Help that lists the commands in groups, each with its whole sentence."""

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
            error.message = in_words(error)
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
    "Run studies": (
        run.run,
        preview.preview,
        run.up,
        run.submit,
        run.watch,
        run.wait,
    ),
    "Look at studies": (
        serve.open,
        looking.studies,
        looking.trial,
        looking.logs,
        doctor.debug,
        events.events,
        events.environment,
        events.replay,
        study_actions.sampler,
        audit.audit,
        events.export,
        events.report,
        events.film,
        weights.weights,
    ),
    "Change studies": (
        study_actions.pause,
        study_actions.resume,
        study_actions.reopen,
        study_actions.cancel,
        study_actions.retry,
        study_actions.branch,
        study_actions.soup,
        study_actions.suggest,
        study_actions.note,
        study_actions.tag,
        delete.delete,
        study_actions.strike,
    ),
    "Run a cluster": (serve.api, serve.worker, serve.workers, serve.sinks, serve.backup, serve.restore),
    "Look at the installation": (
        looking.slots,
        looking.trainers,
        check.check,
        check.check_tuner,
        delete.gc,
        delete.archive,
        delete.erase,
        looking.doctor,
    ),
}

for group, commands in GROUPS.items():
    for command in commands:
        app.command(rich_help_panel=group, context_settings={"help_option_names": ["-h", "--help"]})(command)


class Listing(TyperGroup):
    """Commands on trials; a study in the place of one of them has its trials listed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_command = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if is_command else ["list", *args])


OF_TRIALS = """List the trials of a study; or add one, train it longer, cancel it.

\b
Example:  stagetree trials last --sort value --limit 5
"""
trials = typer.Typer(cls=Listing, help=OF_TRIALS)
trials.command("list")(looking.trials)
for command in (study_actions.add, study_actions.extend, study_actions.stop):
    trials.command()(command)
app.add_typer(trials, name="trials", rich_help_panel="Look at studies")
app.add_typer(serve.token, name="token", rich_help_panel="Run a cluster")


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
