"""OpenTelemetry: one trace per stage, sent to a collector by OTLP over HTTP.

The log contains when a stage was assigned, how long it trained, its measurements and its outcome. Traces are therefore
made from events, like the records of other sinks, and slots know nothing of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from stagetree.sinks.base import Mark, Record, Run, SinkError, errors_of
from stagetree.sinks.runs import StageRun

NEEDS = "OpenTelemetry is not installed: pip install 'stagetree[traces]'"
PATIENCE_SECONDS = 10.0
"""The timeout of a collector, including the exporter's own retries."""


class OpenTelemetry:
    """Sends traces to the collector at `url`. Raises `SinkError` if the library is missing.

    Ids are derived from names, so a stage that is sent again after a kill is still one trace.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self.folder = folder
        self._study = ""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import SimpleSpanProcessor
            from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
            from opentelemetry.sdk.trace.sampling import ALWAYS_ON
        except ImportError:
            raise SinkError(NEEDS) from None
        endpoint = url if url.endswith("/v1/traces") else f"{url.rstrip('/')}/v1/traces"
        self._url, self._made = url, InMemorySpanExporter()
        self._ids = _Names()
        self._exporter: Any = OTLPSpanExporter(endpoint=endpoint, timeout=PATIENCE_SECONDS)
        self._provider: Any = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource({"service.name": "stagetree"}),
            shutdown_on_exit=False,
            id_generator=cast(Any, self._ids),
        )
        self._provider.add_span_processor(SimpleSpanProcessor(self._made))

    def resume(self, study: str, marks: Mapping[Run, Mark]) -> None:
        """Nothing to do: stages that are sent again have the same ids."""
        self._study = study

    def write(self, record: Record) -> Mark:
        """Only stages are sent, no metrics."""

    def write_stage(self, record: StageRun) -> Mark:
        """Send the trace of a stage. Raises `SinkError` if the collector did not accept it."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        self._trace(record)
        spans = self._made.get_finished_spans()
        self._made.clear()
        with errors_of(self._url, OSError):
            if self._exporter.export(spans) is not SpanExportResult.SUCCESS:
                raise SinkError(f"{self._url}: the collector does not take traces")

    def _trace(self, stage: StageRun) -> None:
        """A span for the stage, with child spans for the time until its start and for its training."""
        from opentelemetry.context import Context
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        given_at, begun_at = stage.free_at, max(stage.at - stage.seconds, stage.free_at)
        self._ids.begin(f"{stage.chain}:{stage.index}")
        tracer = self._provider.get_tracer("stagetree")
        name = f"stage {stage.start}-{stage.end}"
        whole = tracer.start_span(
            name, Context(), attributes=self._attributes(stage), start_time=_nanoseconds(given_at)
        )
        below = set_span_in_context(whole)
        tracer.start_span("wait", below, start_time=_nanoseconds(given_at)).end(_nanoseconds(begun_at))
        training = tracer.start_span("train", below, start_time=_nanoseconds(begun_at))
        for at, step, metrics in stage.measured:
            numbers = {name: value for name, value in metrics.items() if value is not None}
            training.add_event("evaluate", {"stagetree.step": step, **numbers}, timestamp=_nanoseconds(at))
        training.end(_nanoseconds(stage.at))
        if stage.error:
            whole.set_status(Status(StatusCode.ERROR, stage.error.strip().splitlines()[-1]))
        whole.end(_nanoseconds(stage.at))

    def _attributes(self, stage: StageRun) -> dict[str, str | int]:
        named: dict[str, str | int] = {
            "study": self._study,
            "trial": stage.trial,
            "chain": stage.chain,
            "stage": stage.index,
            "node": stage.node,
            "slot": stage.slot,
            "outcome": stage.outcome,
            **({"proof": stage.proof} if stage.proof else {}),
        }
        return {f"stagetree.{name}": value for name, value in named.items()}

    def close(self) -> None:
        """Nothing stays open."""


class _Names:
    """An `IdGenerator` for OpenTelemetry that derives ids from the name of a stage."""

    def __init__(self) -> None:
        self._name, self._spans = "", 0

    def begin(self, name: str) -> None:
        """The following spans belong to this trace."""
        self._name, self._spans = name, 0

    def generate_trace_id(self) -> int:
        return int.from_bytes(sha256(self._name.encode()).digest()[:16])

    def generate_span_id(self) -> int:
        self._spans += 1
        return int.from_bytes(sha256(f"{self._name}:{self._spans}".encode()).digest()[:8])

    def is_trace_id_random(self) -> bool:
        return False


def _nanoseconds(at: float) -> int:
    return int(at * 1e9)
