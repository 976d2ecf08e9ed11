"""Where metrics go besides the service: TensorBoard, W&B, MLflow and OpenTelemetry, which follow a study's events.

    with Client() as client:
        follow(client, "digits-asha-0ad751", [open_sink("tensorboard:runs")])

Each trial is a run with its whole curve, also what it shares, and says with whom. Nothing waits for a sink; one that
was ended goes on where it was, with nothing twice and nothing missing.
"""

from stagetree.sinks.addresses import open_sink
from stagetree.sinks.base import Began, Ended, Link, Logged, Point, Record, Sink, SinkError, Struck
from stagetree.sinks.follower import follow

__all__ = ["Began", "Ended", "Link", "Logged", "Point", "Record", "Sink", "SinkError", "Struck", "follow", "open_sink"]
