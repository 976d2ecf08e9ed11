"""All sequences of one trial, cut where any of them changes: the canonical form from which nodes get their names."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import merge
from itertools import groupby, takewhile
from operator import itemgetter
from typing import Any

from app.domain.terms import NodeId, node_id, node_id_of_parts, node_id_part
from stagetree.limits import DATA_SEED
from stagetree.sequences import Form, Held, Piece, Scalar, Sequence
from stagetree.sequences.tape import pieces_of

Change = tuple[int, str, Form]
"""The step from which a hyper-parameter follows another form, its name, and the form."""
_START = itemgetter(0)


@dataclass(frozen=True, slots=True)
class ScheduleSegment:
    """From step `start` on, until the next segment, every hyper-parameter follows its form."""

    start: int
    forms: Mapping[str, Form]

    def values(self, step: int) -> dict[str, Scalar]:
        """The value of every hyper-parameter at an absolute step."""
        return {name: form.at(step) for name, form in self.forms.items()}


def segments(hp: Mapping[str, Any]) -> Iterator[ScheduleSegment]:
    """The segments of a trial in order, from the JSON of its hyper-parameters; endless if a sequence never settles.

    Raises `stagetree.sequences.SequenceError`.
    """
    changes = merge(*(_changes(name, pieces_of(hp[name])) for name in sorted(hp)), key=_START)
    forms: dict[str, Form] = {}
    for start, group in groupby(changes, key=_START):
        forms = forms | {name: form for _, name, form in group}
        yield ScheduleSegment(start, forms)


def _name(parent: str, start: int, forms: Mapping[str, Form], seed: int) -> NodeId:
    """The id of a node. A `data_seed` that is the study's seed is left out: without one, data comes in that order."""
    own = Held(seed)
    kept = {name: form.name for name, form in forms.items() if name != DATA_SEED or form != own}
    return node_id(parent, start, kept)


def path(hp: Mapping[str, Any], steps: int, parent: str, *, after: int = 0, seed: int = 0) -> dict[NodeId, int]:
    """The nodes of a trial that begin in [after, steps), each with its start.

    parent: the parent of the first one. seed: the study's. Raises `stagetree.sequences.SequenceError`.
    """
    names = sorted(hp)
    changes = [
        change
        for name in names
        for change in takewhile(lambda change: change[0] < steps, _changes(name, pieces_of(hp[name])))
    ]
    return dict(_nodes(names, sorted(changes, key=_START), parent, after, seed))


def walk(sequences: Mapping[str, Sequence], steps: int) -> Iterator[tuple[NodeId, int]]:
    """The nodes of a trial that begin before `steps`, root first, as in `path`; each is named when it is read."""
    names = sorted(sequences)
    changes = merge(*(_changes(name, sequences[name].pieces()) for name in names), key=_START)
    return _nodes(names, takewhile(lambda change: change[0] < steps, changes), "", 0, 0)


def _nodes(
    names: list[str], changes: Iterable[Change], parent: str, after: int, seed: int
) -> Iterator[tuple[NodeId, int]]:
    parts, own = dict.fromkeys(names, ""), Held(seed).name
    for start, group in groupby(changes, key=_START):
        for _, name, form in group:
            parts[name] = node_id_part(name, form.name) if name != DATA_SEED or form.name != own else ""
        if start >= after:
            node = node_id_of_parts(parent, start, filter(None, parts.values()))
            yield node, start
            parent = node


def path_from(hp: Mapping[str, Any], begin: int, steps: int, parent: str, seed: int) -> dict[NodeId, int]:
    """Like `path`, but a node begins at step `begin` under `parent` even if no value changes there."""
    first = _name(parent, begin, segment_at(hp, begin).forms, seed)
    return {first: begin, **path(hp, steps, first, after=begin + 1, seed=seed)}


def upcoming_nodes(hp: Mapping[str, Any], steps: int, last: str, seed: int) -> Iterator[tuple[NodeId, int]]:
    """The nodes that a trial would pass after `steps` steps, each with the step at which the trial would leave it.

    last: the node of the last of these steps, the first one to leave. Endless if a sequence never settles. Raises
    `stagetree.sequences.SequenceError`.
    """
    for segment in segments(hp):
        if segment.start >= steps:
            yield NodeId(last), segment.start
            last = _name(last, segment.start, segment.forms, seed)


def segment_at(hp: Mapping[str, Any], step: int) -> ScheduleSegment:
    """The forms at a step, as a segment that begins there. Raises `stagetree.sequences.SequenceError`."""
    return ScheduleSegment(step, {name: _form_at(hp[name], step) for name in sorted(hp)})


def _form_at(sequence: Any, step: int) -> Form:
    return deque(takewhile(lambda piece: piece.start <= step, pieces_of(sequence)), maxlen=1)[0].form


def _changes(name: str, pieces: Iterator[Piece]) -> Iterator[Change]:
    return ((piece.start, name, piece.form) for piece in pieces)
