"""Finds the trainer classes of a file from its source, without running it.

A trainer class has a literal `name = "..."` in its body and may be a subclass of `Trainer`: its bases are followed
through the trainer's files. If they lead outside, it counts as one unless the base is of a library without trainers.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from stagetree.source.definitions import Arguments
from stagetree.source.syntax import dotted_name, string_attributes, syntax_tree
from stagetree.source.versions import root
from stagetree.trainer.program import placeholders

ENTRIES = ("stagetree_trainer.py", "trainer.py")
"""The file of a trainer in its source folder: the first if the user has a module of the second's name."""

LIBRARIES_WITHOUT_TRAINERS = frozenset(
    {"flax", "jax", "keras", "lightning", "numpy", "pydantic", "pytorch_lightning", "sklearn", "tensorflow", "torch"}
    | {"torchvision", "transformers"}
)
"""Libraries whose classes are bases of models, data and settings, and never of trainers."""


MAX_BASES = 20
"""A class with this many bases above it is in a cycle."""

ATTACH_PARAMETERS = ("name", "hp", "steps", "eval_every", "seed", "device", "launch", "caches")
"""The parameters of `attach` itself; all other arguments are the script's."""

ATTACH = ("stagetree.attach", "stagetree.functions.attach")
MAKERS = ("stagetree.function_trainer", "stagetree.functions.function_trainer")
COMMANDS = ("stagetree.CommandTrainer", "stagetree.trainer.command.CommandTrainer")
TRAINERS = ("stagetree.Trainer", "stagetree.trainer.Trainer", *COMMANDS)
WHOLE_BATCH = {"train_batch", "accumulate"}
"""Methods of `TorchTrainer` that sharded training replaces: see `stagetree.trainer.ranks.sharding`."""


def arguments(path: str | Path, files: Mapping[str, bytes]) -> dict[str, Arguments]:
    """The arguments of each trainer's constructor, by trainer name; open if the constructor is inherited."""
    sources, module = _open_sources(path, files)
    body = sources.tree(module).body
    named = {string_attributes(node).get("name"): node for node in body if isinstance(node, ast.ClassDef)}
    own = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    made = ((name, call.args) for name, call in _made_trainers(sources, module) if len(call.args) > 1)
    builds = {name: own.get(dotted_name(args[1]) or "") for name, args in made}
    return {
        **{name: _constructor(node) for name, node in named.items() if name is not None},
        **{name: Arguments.from_function(build, bound=0) for name, build in builds.items() if build is not None},
        **{
            name: Arguments.parse_calls(calls, ATTACH_PARAMETERS)
            for name, calls in _attach_calls(sources, module).items()
        },
    }


def trainers_without(path: str | Path, files: Mapping[str, bytes], method: str) -> frozenset[str]:
    """The names of the trainers that certainly lack a method: neither they nor a base up to `Trainer` define it."""
    sources, module = _open_sources(path, files)
    nodes = [node for node in sources.tree(module).body if isinstance(node, ast.ClassDef)]
    names = {string_attributes(node).get("name") for node in nodes if sources.lacks(node, method)}
    classes = frozenset(name for name in names if name is not None)
    return classes | _scripts(sources, module).keys() | _functions(sources, module)


def _constructor(node: ast.ClassDef) -> Arguments:
    own = (each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__")
    function = next(own, None)
    if function is not None and not function.decorator_list:
        return Arguments.from_function(function)
    return _command_arguments(node) if function is None else Arguments()


def _command_arguments(node: ast.ClassDef) -> Arguments:
    """The arguments in a class's command template, if the class is a `CommandTrainer`."""
    command = string_attributes(node).get("command")
    if command is None or not any((dotted_name(base) or "").endswith("CommandTrainer") for base in node.bases):
        return Arguments()
    names = tuple(placeholders(command))
    sets = [each for each in node.body if isinstance(each, ast.Assign) and "defaults" in map(ast.unparse, each.targets)]
    values = [each.value for each in sets]
    defaults = {getattr(key, "value", None) for each in values if isinstance(each, ast.Dict) for key in each.keys}
    is_literal = all(isinstance(each, ast.Dict) for each in values)
    required = tuple(name for name in names if name not in defaults) if is_literal else ()
    return Arguments(names, required, is_open=False)


def classes(path: str | Path, files: Mapping[str, bytes]) -> Iterator[tuple[str, str | None]]:
    """The name and the literal version, if any, of each trainer in the file. files: from `module_files`."""
    sources, module = _open_sources(path, files)
    for node in sources.tree(module).body:
        literals = string_attributes(node) if isinstance(node, ast.ClassDef) else {}
        if isinstance(node, ast.ClassDef) and "name" in literals and sources.is_trainer(module, node.name):
            yield literals["name"], literals.get("version")
    yield from ((name, None) for name in sorted(_scripts(sources, module).keys() | _functions(sources, module)))


def scripts(path: str | Path, files: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
    """The scripts that own their loop, by the name in `stagetree.attach("gpt")`, with the literal arguments of that
    call."""
    return _scripts(*_open_sources(path, files))


def _scripts(sources: _Sources, module: str) -> dict[str, dict[str, Any]]:
    named = {name: calls[-1].keywords for name, calls in _attach_calls(sources, module).items()}
    return {
        name: {each.arg: each.value.value for each in given if isinstance(each.value, ast.Constant) and each.arg}
        for name, given in named.items()
    }


def _attach_calls(sources: _Sources, module: str) -> dict[str, list[ast.Call]]:
    """The calls of `attach`, by the trainer's name."""
    found: dict[str, list[ast.Call]] = {}
    if b"attach" in sources.files[module]:  # a cheap test, since each new model asks
        for call in [node for node in sources.nodes(module) if isinstance(node, ast.Call)]:
            if sources.absolute(module, call.func) in ATTACH and (name := _name_in(call)):
                found.setdefault(name, []).append(call)
    return found


def _functions(sources: _Sources, module: str) -> frozenset[str]:
    return frozenset(name for name, _ in _made_trainers(sources, module))


def _made_trainers(sources: _Sources, module: str) -> Iterator[tuple[str, ast.Call]]:
    """The trainers made by functions: `Line = function_trainer("line", ...)` at the top level."""
    values = (node.value for node in sources.tree(module).body if isinstance(node, ast.Assign | ast.AnnAssign))
    for call in values:
        if isinstance(call, ast.Call) and sources.absolute(module, call.func) in MAKERS and (name := _name_in(call)):
            yield name, call


def _name_in(call: ast.Call) -> str:
    """The trainer's name, a call's first argument or its `name`; empty if it is not a literal."""
    named = [*call.args[:1], *(each.value for each in call.keywords if each.arg == "name")]
    return next((each.value for each in named if isinstance(each, ast.Constant) and isinstance(each.value, str)), "")


def single_rank(path: str | Path, files: Mapping[str, bytes]) -> dict[str, str]:
    """Why several devices cannot train a trainer, by name, as far as its source shows; continues "trainer 'x'"."""
    sources, module = _open_sources(path, files)
    nodes = chain.from_iterable(sources.nodes(each) for each in files if each.endswith(".py"))
    uses = any(isinstance(node, ast.Attribute) and node.attr == "ranks" for node in nodes)
    why = "is a script that owns its loop, which one process runs"
    launches = {name: str(script.get("launch")) for name, script in _scripts(sources, module).items()}
    reasons = {name: "" if "{devices}" in launch else why for name, launch in launches.items()}
    for node in [each for each in sources.tree(module).body if isinstance(each, ast.ClassDef)]:
        if name := string_attributes(node).get("name"):
            reasons[name] = _single_rank_reason(*sources.line(module, node), uses)
    return {name: why for name, why in reasons.items() if why}


def _single_rank_reason(line: list[ast.ClassDef], base: str, uses: bool) -> str:
    """line: a trainer's class and its bases among the trainer's files. base: the library class at their end. uses:
    whether any attribute there is called `ranks`.
    """
    defined = {each.name for node in line for each in node.body if isinstance(each, ast.FunctionDef)}
    kind = base.rpartition(".")[2] if base.startswith("stagetree.") else ""
    if kind == "LightningTrainer":
        return "is a LightningTrainer, whose module keeps metrics of its own"
    if kind == "TorchTrainer" and (other := sorted(defined & WHOLE_BATCH)):
        return f"overrides `{other[0]}`, which knows of no shards"
    if base in COMMANDS:
        return "is a program, which one process runs"
    if base in TRAINERS and not uses:
        return "never uses `self.ranks`: each device would do all the work"
    return ""


def _open_sources(path: str | Path, files: Mapping[str, bytes]) -> tuple[_Sources, str]:
    """The modules of a trainer's file, and the file's own path among them."""
    file = Path(path).resolve()
    base = root(file)[0]
    return _cached_sources(base, tuple(files.items())), file.relative_to(base).as_posix()


@lru_cache(maxsize=1)
def _cached_sources(base: Path, files: tuple[tuple[str, bytes], ...]) -> _Sources:
    """The last ones are kept: several questions about a file follow each other."""
    return _Sources(base, dict(files))


class _Sources:
    """A trainer's modules by relative path, and the meanings of their names."""

    def __init__(self, base: Path, files: Mapping[str, bytes]) -> None:
        self._base, self.files = base, files
        self._trees: dict[str, ast.Module] = {}
        self._nodes: dict[str, list[ast.AST]] = {}
        self._imported: dict[str, dict[str, str]] = {}

    def tree(self, module: str) -> ast.Module:
        if module not in self._trees:
            self._trees[module] = syntax_tree(self.files[module])
        return self._trees[module]

    def nodes(self, module: str) -> list[ast.AST]:
        """All nodes of a module's tree."""
        if module not in self._nodes:
            self._nodes[module] = list(ast.walk(self.tree(module)))
        return self._nodes[module]

    def absolute(self, module: str, expression: ast.expr) -> str:
        """The absolute dotted name of an expression in a module, by its imports."""
        first, _, rest = (dotted_name(expression) or "").partition(".")
        return ".".join(filter(None, (self._imports(module).get(first, first), rest)))

    def is_trainer(self, module: str, name: str, visited: frozenset[tuple[str, str]] = frozenset()) -> bool:
        """Whether a class in a module may be a subclass of `Trainer`."""
        if (module, name) in visited:
            return False
        for node in self.nodes(module):
            if isinstance(node, ast.ClassDef) and node.name == name:
                return any(self._may_be(module, base, visited | {(module, name)}) for base in node.bases)
        imported = self._imports(module).get(name)
        return self._outside(imported, visited | {(module, name)}) if imported else not hasattr(builtins, name)

    def line(self, module: str, node: ast.ClassDef) -> tuple[list[ast.ClassDef], str]:
        """A class with its bases in these modules, and the absolute name of the next base outside; "" if it is
        uncertain, since a class has several bases or none.
        """
        nodes = [node]
        while len(node.bases) == 1 and len(nodes) < MAX_BASES:
            dotted = self.absolute(module, node.bases[0])
            inside = self._class(module, dotted)
            if inside is None:
                return nodes, dotted
            module, node = inside
            nodes.append(node)
        return nodes, ""

    def lacks(self, node: ast.ClassDef, method: str) -> bool:
        """Whether a class directly below `stagetree.Trainer` does not define a method."""
        module = next(name for name, tree in self._trees.items() if node in tree.body)
        base = self.absolute(module, node.bases[0]) if len(node.bases) == 1 else ""
        defined = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
        return base in TRAINERS and method not in defined and not node.decorator_list

    def _class(self, module: str, dotted: str) -> tuple[str, ast.ClassDef] | None:
        """The class of an absolute name and its module, if it is in these modules."""
        owner, _, name = dotted.rpartition(".")
        folder = owner.replace(".", "/")
        for place in (f"{folder}/__init__.py", f"{folder}.py") if owner else (module,):
            body = self.tree(place).body if place in self.files else []
            for node in body:
                if isinstance(node, ast.ClassDef) and node.name == name:
                    return place, node
        return None

    def _may_be(self, module: str, base: ast.expr, visited: frozenset[tuple[str, str]]) -> bool:
        written = dotted_name(base)
        if written is None:
            return True  # a computed base is unknown
        first, _, rest = written.partition(".")
        if not rest:
            return self.is_trainer(module, first, visited)
        imported = self._imports(module).get(first, first)
        return self._outside(f"{imported}.{rest}", visited)

    def _outside(self, dotted: str, visited: frozenset[tuple[str, str]]) -> bool:
        """Whether a class may be a trainer, by its absolute name in our modules or a library."""
        owner, _, name = dotted.rpartition(".")
        folder = owner.replace(".", "/")
        for module in (f"{folder}/__init__.py", f"{folder}.py"):
            if module in self.files:
                return self.is_trainer(module, name, visited)
        library = dotted.partition(".")[0]
        return library not in LIBRARIES_WITHOUT_TRAINERS and library not in sys.stdlib_module_names

    def _imports(self, module: str) -> dict[str, str]:
        """The absolute dotted names of a module's imported names."""
        if module in self._imported:
            return self._imported[module]
        package = module.split("/")[:-1]
        self._imported[module] = imports = dict[str, str]()
        for node in self.nodes(module):
            match node:
                case ast.Import(names=names):
                    for alias in names:
                        first = alias.name.partition(".")[0]
                        imports[alias.asname or first] = alias.name if alias.asname else first
                case ast.ImportFrom(module=source, names=names, level=level):
                    within = package[: len(package) - level + 1] if level else []
                    for alias in names:
                        parts = [*within, *([source] if source else []), alias.name]
                        imports[alias.asname or alias.name] = ".".join(parts)
        return imports
