"""Sinks: copies of a study's metrics in TensorBoard, W&B, MLflow and OpenTelemetry.

    with Client() as client:
        follow(client, "digits-asha-0ad751", [open_sink("tensorboard:runs")])

Each trial is a run with its whole curve, including shared steps and the trials that share them. The service never waits
for a sink. A sink that was stopped resumes without gaps or duplicates.
"""

from stagetree.sinks.addresses import open_sink
from stagetree.sinks.base import Began, Ended, Link, Logged, Point, Record, Sink, SinkError, Struck
from stagetree.sinks.follower import follow

__all__ = ["Began", "Ended", "Link", "Logged", "Point", "Record", "Sink", "SinkError", "Struck", "follow", "open_sink"]
