"""The trace of each stage that a collector receives: OTLP over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from stacks import Json

from stagetree.sinks import SinkError, follow, open_sink
from stagetree.sinks.runs import StageRun
from stagetree.sinks.traces import OpenTelemetry
from tests.sinks.scripted import STUDY, A, B, C, Killed, Scripted, busy_study, events, step_evaluated, trial_added

ERROR = "Traceback\nValueError: no"


class Collector:
    """Takes traces, or refuses them with a status of HTTP."""

    def __init__(self) -> None:
        self.status, self.spans = 200, list[Span]()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if collector.status == 200:
                    for each in ExportTraceServiceRequest.FromString(body).resource_spans:
                        collector.spans += (span for scope in each.scope_spans for span in scope.spans)
                self.send_response(collector.status)
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def address(self) -> str:
        return f"otlp:{self.url}"

    def spans_named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    there = Collector()
    yield there
    there.close()


def stage(node: str, start: int, end: int) -> Json:
    return {"node": node, "start": start, "end": end, "study": STUDY, "evaluate": []}


def chain_of(*stages: Json, name: str = "c1", slot: str = "gpu0") -> tuple[str, Json]:
    return "ChainAssigned", {"chain": name, "slot": slot, "stages": list(stages), "at": 0.0, "proof": None}


def stage_completed(index: int, seconds: float) -> tuple[str, Json]:
    return "StageCompleted", {"chain": "c1", "index": index, "seconds": seconds}


def trained_study() -> list[Json]:
    """A trial of two stages, trained by one chain; the second stage fails."""
    return events(
        trial_added(0, 40, {A: 0, B: 20}),
        chain_of(stage(A, 0, 20), stage(B, 20, 40)),
        step_evaluated(A, 10, 0.1),
        stage_completed(0, 1.5),
        ("StageFailed", {"chain": "c1", "index": 1, "step": 30, "kind": "error", "error": ERROR, "seconds": 0.5}),
    )


def attributes(span: Span) -> Json:
    return {
        each.key: each.value.int_value if each.value.HasField("int_value") else each.value.string_value
        for each in span.attributes
    }


def send_traces(folder: Path, source: Scripted, collector: Collector) -> None:
    follow(source, STUDY, [open_sink(collector.address, folder)])


def test_a_stage_is_a_trace_with_its_wait_and_its_training(tmp_path: Path, collector: Collector) -> None:
    send_traces(tmp_path, Scripted(trained_study()), collector)
    (whole,) = collector.spans_named("stage 0-20")
    assert attributes(whole) == {
        "stagetree.study": STUDY,
        "stagetree.trial": 0,
        "stagetree.chain": "c1",
        "stagetree.stage": 0,
        "stagetree.node": A,
        "stagetree.slot": "gpu0",
        "stagetree.outcome": "completed",
    }
    parts = [span for span in collector.spans if span.parent_span_id == whole.span_id]
    assert [(span.name, span.trace_id == whole.trace_id) for span in parts] == [("wait", True), ("train", True)]
    times = [(span.start_time_unix_nano / 1e9, span.end_time_unix_nano / 1e9) for span in (whole, *parts)]
    assert times == [(3.0, 5.0), (3.0, 3.5), (3.5, 5.0)]
    (evaluation,) = parts[1].events
    assert (evaluation.name, evaluation.time_unix_nano / 1e9) == ("evaluate", 4.0)
    assert {each.key for each in evaluation.attributes} == {"stagetree.step", "accuracy"}


def test_a_stage_that_failed_says_why(tmp_path: Path, collector: Collector) -> None:
    send_traces(tmp_path, Scripted(trained_study()), collector)
    (failed,) = collector.spans_named("stage 20-30")
    assert (failed.status.code, failed.status.message) == (Status.STATUS_CODE_ERROR, "ValueError: no")
    assert attributes(failed)["stagetree.outcome"] == "failed"


def test_a_chain_without_a_completed_step_has_no_trace(tmp_path: Path, collector: Collector) -> None:
    lost = ("ChainEnded", {"chain": "c1", "outcome": "undelivered", "steps": 0, "seconds": 0.0})
    send_traces(tmp_path, Scripted(events(trial_added(0, 20, {A: 0}), chain_of(stage(A, 0, 20)), lost)), collector)
    assert collector.spans == []


def test_stages_for_other_studies_only_are_not_sent(tmp_path: Path, collector: Collector) -> None:
    send_traces(
        tmp_path,
        Scripted(events(trial_added(0, 20, {A: 0}), chain_of(stage(C, 0, 20)), stage_completed(0, 1.0))),
        collector,
    )
    assert collector.spans == []


def test_a_stage_that_is_sent_twice_is_one_trace(tmp_path: Path, collector: Collector) -> None:
    """The process was killed before it noted the first."""

    class KilledAfterStage(OpenTelemetry):
        def write_stage(self, record: StageRun) -> None:
            super().write_stage(record)
            raise Killed

    with pytest.raises(Killed):
        follow(Scripted(trained_study()), STUDY, [KilledAfterStage(collector.url, tmp_path)])
    follow(Scripted(trained_study()), STUDY, [OpenTelemetry(collector.url, tmp_path)])
    first, second = collector.spans_named("stage 0-20")
    assert (first.trace_id, first.span_id) == (second.trace_id, second.span_id)
    assert len(collector.spans_named("stage 20-30")) == 1


def test_a_refusing_collector_is_reported_and_retried(tmp_path: Path, collector: Collector) -> None:
    collector.status = 400
    with pytest.raises(SinkError, match="the collector does not take traces"):
        send_traces(tmp_path, Scripted(trained_study()), collector)
    collector.status = 200
    send_traces(tmp_path, Scripted(trained_study()), collector)
    assert len(collector.spans_named("stage 0-20")) == 1


def test_other_sinks_are_given_no_stages(tmp_path: Path) -> None:
    follow(Scripted([*busy_study(), *trained_study()]), STUDY, [open_sink(f"tensorboard:{tmp_path}")])


def test_a_collector_is_named_by_its_url(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"such as otlp:http://host:4318, got 'otlp:host:4318'"):
        open_sink("otlp:host:4318", tmp_path)
