"""The real application, for what users import."""

from tests.api.conftest import app, make_app, server, trainers, use, wake_ups, workers

__all__ = ["app", "make_app", "server", "trainers", "use", "wake_ups", "workers"]
