"""Groups of commands: their help, and groups that are a command themselves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import typer
from typer.core import TyperGroup

from app.cli.errors import USAGE, fail, parameter_message, print_problem

UsageError: Any = typer.BadParameter.__base__
"""The base class of usage errors: of the `click` that typer brings or, in older versions, of the installed one."""

FIRST_WEEK = (
    "demo",
    "init",
    "preview",
    "run",
    "open",
    "studies",
    "trials",
    "trial",
    "logs",
    "weights",
    "check",
    "doctor",
)
"""The commands of `stagetree --help`, as far as they exist. `stagetree help all` lists the others, too."""


def print_rows(formatter: Any, title: str, commands: Mapping[str, Any]) -> None:
    """Print the commands below a title, each with its first sentence, which may have several lines."""
    rows = [(name, (command.help or "").strip().partition("\n")[0]) for name, command in commands.items()]
    with formatter.section(title):
        formatter.write_dl(rows)


def print_groups(formatter: Any, commands: Mapping[str, Any]) -> None:
    """Print all commands by group."""
    groups: dict[str, dict[str, Any]] = {}
    for name, command in commands.items():
        groups.setdefault(command.rich_help_panel or "", {})[name] = command
    for title, group in groups.items():
        print_rows(formatter, title, group)


class LazyCommands(Mapping[str, Any]):
    """Commands by name, each made when it is first asked for. makers: the names, and the functions that make them."""

    def __init__(self, makers: Iterable[tuple[str, Callable[[], Any]]]) -> None:
        self._makers = dict(makers)
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


class MainGroup(TyperGroup):
    """The `stagetree` command. Its help has the commands of a first week."""

    commands: Any  # a mapping, where typer has a dict
    other_words: Mapping[str, str] = {}
    """Names that other tools use, and the commands they correspond to."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        first = {name: self.commands[name] for name in FIRST_WEEK if name in self.commands}
        print_rows(formatter, "Commands of a first week", first)

    def get_command(self, ctx: Any, name: str) -> Any:
        if name in self.other_words and name not in self.commands:
            fail(f"there is no command {name}: `stagetree {self.other_words[name]}` is meant for that", USAGE)
        return super().get_command(ctx, name)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = parameter_message(error)
            raise

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Report usage errors as all others are, with a problem document where the command line asks for JSON."""
        if not options.get("standalone_mode", True):
            return super().main(*arguments, **options)
        try:
            code = super().main(*arguments, **options | {"standalone_mode": False})
        except typer.Abort:
            print("Aborted!", file=sys.stderr)
            sys.exit(1)
        except UsageError as error:
            error.show()
            print_problem(error.format_message(), error.exit_code)
            sys.exit(error.exit_code)
        sys.exit(code or 0)


class SentenceGroup(TyperGroup):
    """Commands on one kind of thing, listed with whole sentences."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        print_rows(formatter, "Commands", self.commands)


class NounGroup(TyperGroup):
    """Commands on one kind of thing. Without one of them, the first shows the thing, and its options are listed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_completed = ctx.resilient_parsing and not args
        is_command = is_completed or (args and (args[0] in self.commands or args[0] in ctx.help_option_names))
        return super().parse_args(ctx, args if is_command else [self._main, *args])

    @property
    def _main(self) -> str:
        return next(iter(self.commands))

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        with self._main_context(ctx) as inner:
            return [*super().shell_complete(ctx, incomplete), *inner.command.shell_complete(inner, incomplete)]

    def _main_context(self, ctx: Any) -> Any:
        return self.commands[self._main].make_context(self._main, [], parent=ctx, resilient_parsing=True)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*self.commands[self._main].collect_usage_pieces(ctx), "| COMMAND ..."]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        with self._main_context(ctx) as inner:
            inner.command.format_options(inner, formatter)
        print_rows(formatter, "Commands", {name: each for name, each in self.commands.items() if name != self._main})
