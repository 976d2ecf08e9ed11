"""Advice on a study file, before anything of it is trained and when all of it is."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stagetree.spec import StudySpec

COUNTING_SECONDS = 1.0
"""How long a run may take to count what advice would save: `preview` takes longer."""


def print_advice(spec: StudySpec) -> None:
    """What would let its trials share more, before anything is trained."""
    from stagetree.advice import advice

    try:
        from app.simulation.preview import count_steps
    except ModuleNotFoundError:
        return  # the package alone simulates nothing, and the server does not need this
    deadline = time.monotonic() + COUNTING_SECONDS
    _print(advice(spec, lambda each: count_steps(each, is_over=lambda: time.monotonic() > deadline)))


def print_afterthoughts(spec: StudySpec, study: dict[str, Any]) -> None:
    """Where a study is over and none of its trials came to its last step."""
    from stagetree.advice import afterthoughts

    if study["state"] == "completed":
        _print(afterthoughts(spec, max((trial["trained"] for trial in study["trials"]), default=0)))


def _print(sentences: list[str]) -> None:
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else 0
    for sentence in sentences:
        text = f"Advice: {sentence}."
        print(textwrap.fill(text, width) if width else text, file=sys.stderr)
