"""All commands, in groups, as `stagetree help all` lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from app.cli.errors import USAGE, fail
from app.cli.groups import LazyCommands, MainGroup, NounGroup, SentenceGroup, print_groups

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

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = LazyCommands(_makers())


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

GROUPS: dict[str, tuple[str, ...]] = {
    "Run studies": (
        "demo",
        "init",
        "run",
        "preview",
        "import_study:import_",
        "schema",
        "up",
        "run:submit",
        "watch",
        "watch:wait",
        "mcp",
    ),
    "Look at studies": (
        "open",
        "studies",
        "study",
        "trials",
        "trial:logs",
        "debug",
        "events",
        "study:environment",
        "replay",
        "suggest:sampler",
        "audit",
        "export",
        "report",
        "report:film",
        "weights",
    ),
    "Change studies": (
        "study_actions:pause",
        "study_actions:resume",
        "study_actions:reopen",
        "study_actions:cancel",
        "study_actions:retry",
        "branch",
        "branch:soup",
        "suggest",
        "study_actions:note",
        "study_actions:tag",
        "delete",
        "study_actions:strike",
    ),
    "Run a cluster": ("api", "workers:worker", "workers", "sinks", "tokens", "backup", "backup:restore"),
    "Look at the installation": (
        "slots",
        "trainer_files:trainers",
        "check",
        "check:check_tuner",
        "delete:gc",
        "archive",
        "delete:erase",
        "doctor",
    ),
}
"""The commands of each group, as `MODULE:FUNCTION`, or `MODULE` if the function has its name: only the module of the
command that runs is imported.
"""

NOUNS: dict[str, tuple[str, type[TyperGroup], str | None, dict[str, str]]] = {
    "trial": (
        "Look at studies",
        NounGroup,
        None,
        {
            "show": "trial",
            "add": "trial:add",
            "extend": "trial:extend",
            "stop": "trial:stop",
        },
    ),
    "skill": ("Run studies", SentenceGroup, SKILL_HELP, {"install": "skill:install"}),
    "token": ("Run a cluster", SentenceGroup, TOKEN_HELP, {"create": "tokens:create", "revoke": "tokens:revoke"}),
}
"""Commands on one thing, whose plural lists such things: where the help lists them, their class, help and commands.
Without a help of its own, one has that of its first command.
"""


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


def command_name(place: str) -> str:
    """The name of a command in `GROUPS`, without the underscore that `import_` needs in Python."""
    return place.rpartition(":")[2].strip("_").replace("_", "-")


def _function(place: str) -> Callable[..., Any]:
    module, _, name = place.partition(":")
    function: Callable[..., Any] = getattr(import_module(f"app.cli.{module}"), name or module)
    return function


def _make_command(name: str, group: str, function: Callable[..., Any]) -> Any:
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name, rich_help_panel=group, context_settings=HELP_OPTIONS)(function)
    return typer.main.get_command(single)


def _make_placed(place: str, group: str) -> Any:
    return _make_command(command_name(place), group, _function(place))


def _make_noun(noun: str) -> Any:
    group, cls, text, commands = NOUNS[noun]
    functions = {name: _function(place) for name, place in commands.items()}
    text = text or next(iter(functions.values())).__doc__
    nested = typer.Typer(name=noun, cls=cls, help=text, rich_markup_mode=None)
    for name, function in functions.items():
        nested.command(name)(function)
    made: Any = typer.main.get_group(nested)
    made.rich_help_panel = group
    return made


def _makers() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each command's name, and what makes it."""
    for group, places in GROUPS.items():
        for place in places:
            yield command_name(place), partial(_make_placed, place, group)
    yield "help", partial(_make_command, "help", "Look at the installation", _help)
    for noun in NOUNS:
        yield noun, partial(_make_noun, noun)


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
