"""The trainers of this installation, from Python files named by the operator, never by a client.

The files are parsed without running them, so that the API process needs neither torch nor the user's code. A trainer's
version is the literal `version` that it declares, or a hash of its code (`stagetree.source.versions`): changed code
makes another plan, and never resumes from an old checkpoint.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from stagetree.sequences import did_you_mean
from stagetree.source.definitions import Arguments
from stagetree.source.discovery import ENTRIES, arguments, classes, scripts, single_rank, trainers_without
from stagetree.source.loops import read_in_steps
from stagetree.source.syntax import syntax_tree
from stagetree.source.versions import SourceError, candidates, module_files, version_of

if TYPE_CHECKING:
    from stagetree.spec import StudySpec

SETTLED_SECONDS = 2.0
"""A file that was written more recently may be written again without a change of its times."""

Stamps = dict[Path, tuple[int, int, int] | None]
"""Time of the last change and size of each file; None for a missing one."""


class TrainerFileError(Exception):
    """A trainer file that cannot be used; the message names it and the reason."""


@dataclass(frozen=True, slots=True)
class TrainerSource:
    """Where a trainer is, the version of its code, and its arguments."""

    path: str
    version: str
    takes: Arguments = field(default_factory=Arguments)
    single_rank: str = ""
    """Why several devices cannot train it, as far as its source shows; empty if unknown."""
    launched: bool = False
    """Whether a launcher of its own starts its processes."""
    lacks: frozenset[str] = frozenset()
    """Optional methods that it certainly does not have."""
    script: bool = False
    """Whether it is a script that owns its training loop."""
    reads: frozenset[str] | None = None
    """The hyper-parameters that it may read; None if its source does not show them."""


@dataclass(slots=True)
class _File:
    """The contents of a trainer file when it was read."""

    stamps: Stamps
    is_settled: bool
    versions: dict[str, str]
    names: frozenset[str]
    """Of its trainers, when it could be read last."""
    problem: str = ""
    takes: Mapping[str, Arguments] = field(default_factory=dict)
    without: Mapping[str, frozenset[str]] = field(default_factory=dict)
    single_rank: Mapping[str, str] = field(default_factory=dict)
    scripts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reads: frozenset[str] | None = None

    def source(self, path: str, name: str) -> TrainerSource:
        """One of its trainers. path: of this file."""
        takes, single = self.takes.get(name, Arguments()), self.single_rank.get(name, "")
        lacks = frozenset(method for method, names in self.without.items() if name in names)
        source = TrainerSource(path, self.versions[name], takes, single, lacks=lacks)
        if (script := self.scripts.get(name)) is not None:
            source = replace(source, script=True, launched=bool(script.get("launch")), reads=self.reads)
        return source


_known: dict[str, _File] = {}
"""What this process has read, by path."""
_reading = Lock()


class Catalogue(Mapping[str, TrainerSource]):
    """The trainers in some files by their names, as the files are now; of equal names the first one. Files that cannot
    be used have none.

    Each look reads the times of the files and of their imports. A look for one trainer, as for each chain, reads only
    the times of its own file.
    """

    def __init__(self, files: Iterable[str]) -> None:
        self._files = tuple(files)

    def __getitem__(self, name: str) -> TrainerSource:
        path = next((path for path in files_in(self._files) if name in _names_in(path)), None)
        if path is not None and name in (file := self._look([path])[path]).versions:
            return file.source(path, name)
        return self.describe()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.describe())

    def __len__(self) -> int:
        return len(self.describe())

    def describe(self) -> dict[str, TrainerSource]:
        """All trainers now."""
        sources: dict[str, TrainerSource] = {}
        for path, file in self._look().items():
            for name in file.versions:
                sources.setdefault(name, file.source(path, name))
        return sources

    def problems(self) -> dict[str, str]:
        """The problem of each file that has one, by path."""
        problems: dict[str, str] = {}
        owners: dict[str, str] = {}
        for path, file in self._look().items():
            if file.problem:
                problems[path] = file.problem
            for name in file.versions:
                if owners.setdefault(name, path) != path:
                    problems[path] = f"{path}: there is another trainer named {name!r}; names must differ"
        return problems

    def find(self, name: str) -> TrainerSource | None:
        """The trainer of that name. Raises `TrainerFileError` if its file cannot be used any more."""
        if (source := self.get(name)) is not None:
            return source
        for file in self._look().values():
            if name in file.names:
                raise TrainerFileError(file.problem)
        return None

    def check(self) -> None:
        """Raises `TrainerFileError` for the first file that cannot be used."""
        for problem in self.problems().values():
            raise TrainerFileError(problem)

    def _look(self, paths: Iterable[str] | None = None) -> dict[str, _File]:
        """The contents of these files now, or of all."""
        with _reading:
            files = list(files_in(self._files) if paths is None else paths)
            for path in files:
                file = _known.get(path)
                if file is None or not file.is_settled or _stamps(file.stamps) != file.stamps:
                    _known[path] = _read(path, file.names if file else frozenset())
            return {path: _known[path] for path in files}


def _names_in(path: str) -> frozenset[str]:
    """The trainers that the file had when it was read last."""
    file = _known.get(path)
    return file.names if file else frozenset()


def files_in(paths: Iterable[str]) -> Iterator[str]:
    """The files among the paths and, for each folder, its present entry files, such as `FOLDER/NAME/trainer.py`."""
    for path in paths:
        if not Path(path).is_dir():
            yield path
            continue
        for folder in sorted(Path(path).iterdir()):
            there = (folder / name for name in ENTRIES)
            yield from (str(file) for file in islice(filter(Path.is_file, there), 1))


def describe(files: Iterable[str]) -> dict[str, str]:
    """The version of each trainer by its name. Raises `TrainerFileError`."""
    catalogue = Catalogue(files)
    catalogue.check()
    return {name: source.version for name, source in catalogue.describe().items()}


def unread_hyper_parameters(spec: StudySpec, source: TrainerSource) -> list[str]:
    """Warnings about the hyper-parameters of a study that its script never reads."""
    if (reads := source.reads) is None:
        return []
    named = [trial.hp for trial in getattr(spec.tuner, "trials", ())]
    names = dict.fromkeys(chain(spec.search_space.hyper_parameters if spec.space else (), *named))
    there = f"so its values change nothing: it reads {', '.join(sorted(reads)) or 'none'}"
    return [f"the script never reads {name}, {there}{did_you_mean(name, reads)}" for name in names if name not in reads]


def _read(path: str, names: frozenset[str]) -> _File:
    """The stamps are taken first, so that a change while the file is read is noticed the next time."""
    watched: Iterable[Path] = [Path(path)]
    try:
        files = module_files(path)
        watched = [Path(path), *candidates(path, files)]
        stamps, again = _stamps(watched), module_files(path)
        versions = _versions(path, again)
        newest = max((max(stamp[:2]) for stamp in stamps.values() if stamp), default=0)
        is_settled = again == files and abs(time.time_ns() - newest) > SETTLED_SECONDS * 10**9
        return _File(
            stamps,
            is_settled,
            versions,
            frozenset(versions),
            takes=arguments(path, again),
            without={method: trainers_without(path, again, method) for method in ("begin", "average")},
            single_rank=single_rank(path, again),
            scripts=(attached := scripts(path, again)),
            reads=read_in_steps(path, again) if attached else None,
        )
    except (SourceError, TrainerFileError) as error:
        return _File(_stamps(watched), is_settled=False, versions={}, names=names, problem=str(error))


def _versions(path: str, files: Mapping[str, bytes]) -> dict[str, str]:
    named = dict(classes(path, files))
    if not named:
        there = [node.name for node in syntax_tree(Path(path).read_bytes()).body if isinstance(node, ast.ClassDef)]
        expected = (
            'a subclass of Trainer with name = "..." in its body, X = stagetree.function_trainer("...", ...), '
            'or stagetree.attach("...") of a script'
        )
        raise TrainerFileError(f"{path} holds no trainer: {expected}; its classes are {', '.join(there) or 'none'}")
    whole = version_of(files)
    return {name: declared or whole for name, declared in named.items()}


def _stamps(files: Iterable[Path]) -> Stamps:
    stamps: Stamps = {}
    for file in files:
        try:
            at = file.stat()
        except OSError:
            stamps[file] = None
        else:
            stamps[file] = (at.st_mtime_ns, at.st_ctime_ns, at.st_size)
    return stamps
