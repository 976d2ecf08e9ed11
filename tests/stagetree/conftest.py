"""The real application, for what users import."""

from tests.api.conftest import app, make_app, nudges, server, trainers, use, workers

__all__ = ["app", "make_app", "nudges", "server", "trainers", "use", "workers"]
