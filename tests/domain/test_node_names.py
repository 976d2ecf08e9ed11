"""Names of nodes are in all existing logs, so they never change."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.domain.schedule import path, segments, walk
from app.domain.terms import NodeId, node_id
from stagetree import sequences
from stagetree.sequences import Form, Sequence
from tests.strategies import configurations

GOLDEN = Path(__file__).parent.parent / "golden" / "forms.jsonl"
"""(sequence, step, name of the form in force there, id of that node beside a batch size of 64). Lines are added, never
changed."""

LINES = [json.loads(line) for line in GOLDEN.read_text().splitlines()]


def node_at(hp: dict[str, Any], step: int) -> tuple[dict[str, Form], NodeId]:
    """The forms in force at a step, and the id of the node there."""
    name, forms = NodeId(""), dict[str, Form]()
    for segment in segments(hp):
        if segment.start > step:
            break
        forms = dict(segment.forms)
        name = node_id(name, segment.start, {hp: form.name for hp, form in forms.items()})
    return forms, name


def test_a_form_and_its_node_keep_their_names() -> None:
    for sequence, step, *names in LINES:
        forms, node = node_at({"lr": sequence, "bs": 64}, step)
        assert [forms["lr"].name, node] == names, (sequence, step)


@given(configurations(), st.integers(1, 60))
def test_nodes_that_are_named_one_by_one_are_those_of_the_path(configuration: dict[str, Sequence], steps: int) -> None:
    written = {name: sequence.to_json() for name, sequence in configuration.items()}
    assert list(walk(configuration, steps)) == list(path(written, steps, "").items())


def test_every_family_and_every_form_has_a_line() -> None:
    families = {line[0]["family"] for line in LINES if isinstance(line[0], dict)}
    assert families == set(sequences.FAMILIES)
    used = {type(node_at({"lr": line[0]}, line[1])[0]["lr"]) for line in LINES}
    assert used == {sequences.Held, *sequences.CURVES}


def test_no_two_forms_are_stored_alike() -> None:
    assert len({curve.stored_as for curve in sequences.CURVES}) == len(sequences.CURVES)


def test_a_name_cannot_look_like_two_hyper_parameters() -> None:
    one = node_id("", 0, {"a\x1ef0.1\x1fb": "f0.2"})
    two = node_id("", 0, {"a": "f0.1", "b": "f0.2"})
    escaped = node_id("", 0, {"a\x10ef0.1\x10fb": "f0.2"})
    assert len({one, two, escaped}) == 3


def test_only_names_with_separators_are_escaped() -> None:
    before = hashlib.sha256(b"\x1f0\x1flr\n\x1ef0.1").hexdigest()[:32]
    assert node_id("", 0, {"lr\n": "f0.1"}) == before
