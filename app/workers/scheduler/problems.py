"""Runs on: the tick's thread; `say_once` on the retention thread.

What holds something up, in a sentence each: said once in the log, and there to be read as long as it lasts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

logger = logging.getLogger(__name__)


class Problems:
    """Sentences by what they are about: a plan, a study, or a chain."""

    def __init__(self) -> None:
        self._sentences: dict[str, str] = {}

    def report(self, about: str, sentence: str) -> None:
        """Something is held up."""
        if self._sentences.get(about) != sentence:
            logger.warning("%s", sentence)
        self._sentences[about] = sentence

    def clear(self, about: str) -> None:
        """It is not, or not any more."""
        self._sentences.pop(about, None)

    def all(self) -> Mapping[str, str]:
        """What holds something up now."""
        return dict(self._sentences)


def say_once() -> Callable[[str], None]:
    """Logs a sentence when something begins to be held up, and none as long as it is: an empty one says it is not."""
    said = ""

    def say(text: str) -> None:
        nonlocal said
        if text and not said:
            logger.warning("%s", text)
        said = text

    return say
