"""All commands, in groups, as `stagetree help all` lists them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from app.cli.api import api
from app.cli.archive import archive
from app.cli.audit import audit
from app.cli.backup import backup, restore
from app.cli.branch import branch, soup
from app.cli.check import check, check_tuner
from app.cli.debug import debug
from app.cli.delete import delete, erase, gc
from app.cli.demo import demo
from app.cli.doctor import doctor
from app.cli.environment import environment
from app.cli.errors import USAGE, fail
from app.cli.events import events
from app.cli.export import export
from app.cli.groups import MainGroup, NounGroup, SentenceGroup, print_groups
from app.cli.import_study import import_
from app.cli.init import init
from app.cli.mcp import mcp
from app.cli.open import open
from app.cli.preview import preview
from app.cli.replay import replay
from app.cli.report import film, report
from app.cli.run import run, submit
from app.cli.schema import schema
from app.cli.sinks import sinks
from app.cli.skill import install
from app.cli.slots import slots
from app.cli.studies import studies
from app.cli.study import study
from app.cli.study_actions import cancel, pause, reopen, resume, retry, strike
from app.cli.study_annotations import note, tag
from app.cli.suggest import sampler, suggest
from app.cli.tokens import create, revoke, tokens
from app.cli.trainers import trainers
from app.cli.trial import logs, trial
from app.cli.trial_requests import add, extend, stop
from app.cli.trials import trials
from app.cli.up import up
from app.cli.watch import wait, watch
from app.cli.weights import weights
from app.cli.workers import worker, workers

EPILOG = (
    "All commands: stagetree help all. One of them, with an example: stagetree COMMAND --help. The guide: "
    "docs/command-line.md"
)

OTHER_WORDS = {
    "best": "trials ID --sort value",
    "dashboard": "open",
    "label": "tag ID TAG",
    "list": "studies",
    "ls": "studies",
    "optimize": "run STUDY.yaml",
    "show": "study ID",
    "start": "run STUDY.yaml",
    "status": "studies",
    "stop": "cancel ID",
    "ui": "open",
}
"""Names that other tools use, and the commands they correspond to."""


class Commands(MainGroup):
    other_words = OTHER_WORDS


TOKEN_HELP = """Create and revoke the tokens by which an API identifies people and programs.

\b
Example:  stagetree token create ci --scope submit --project vision
"""

SKILL_HELP = """Install the file by which an agent learns to use stagetree.

\b
Example:  stagetree skill install --for claude
"""

app = typer.Typer(
    name="stagetree",
    cls=Commands,
    help="Hyper-parameter search that trains what trials share only once.\n\nBegin with: stagetree run study.yaml",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

GROUPS: dict[str, tuple[Callable[..., Any], ...]] = {
    "Run studies": (demo, init, run, preview, import_, schema, up, submit, watch, wait, mcp),
    "Look at studies": (
        open,
        studies,
        study,
        trials,
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
    "Run a cluster": (api, worker, workers, sinks, tokens, backup, restore),
    "Look at the installation": (slots, trainers, check, check_tuner, gc, archive, erase, doctor),
}

NOUNS: dict[str, tuple[str, type[TyperGroup], str, tuple[Callable[..., Any], ...]]] = {
    "trial": ("Look at studies", NounGroup, trial.__doc__ or "", (trial, add, extend, stop)),
    "skill": ("Run studies", SentenceGroup, SKILL_HELP, (install,)),
    "token": ("Run a cluster", SentenceGroup, TOKEN_HELP, (create, revoke)),
}
"""Commands on one thing, whose plural lists such things: where the help lists them, their class, help and commands."""


def _help(
    context: typer.Context,
    about: Annotated[list[str] | None, typer.Argument(metavar="[all | COMMAND]", help="What to explain.")] = None,
) -> None:
    """List all commands with `stagetree help all`, or explain one.

    \b
    Example:  stagetree help all
    """
    main: Any = context.parent
    if about == ["all"]:
        formatter = main.make_formatter()
        print_groups(formatter, main.command.commands)
        print(formatter.getvalue(), end="")
        return
    for name in about or ():
        command = main.command.get_command(main, name) if hasattr(main.command, "commands") else None
        if command is None:
            fail(f"there is no command {' '.join(about or ())}: `stagetree help all` lists them", USAGE)
        main = command.make_context(name, [], parent=main, resilient_parsing=True)
    print(main.get_help())


HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}


def command_name(command: Callable[..., Any]) -> str:
    """The name of a command's function, without the underscore that `import_` needs in Python."""
    return command.__name__.strip("_").replace("_", "-")


for group, commands in GROUPS.items():
    for command in commands:
        app.command(command_name(command), rich_help_panel=group, context_settings=HELP_OPTIONS)(command)
for noun, (group, cls, text, commands) in NOUNS.items():
    nested = typer.Typer(cls=cls, help=text)
    for command in commands:
        nested.command("show" if command is trial else None)(command)
    app.add_typer(nested, name=noun, rich_help_panel=group)
app.command("help", rich_help_panel="Look at the installation", context_settings=HELP_OPTIONS)(_help)


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
