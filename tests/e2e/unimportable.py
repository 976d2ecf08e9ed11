"""A trainer whose file cannot be run: its dependency is not installed."""

import no_such_package  # type: ignore[import-not-found]  # noqa: F401

from stagetree import Trainer


class Unimportable(Trainer):
    """Never comes to be."""

    name = "unimportable"
