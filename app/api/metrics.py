"""The numbers of `GET /metrics`, in the text format of Prometheus.

Readiness is included in any outage, also for callers whose token cannot be checked then: `/readyz` is open to all.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import NamedTuple

from app.api.counters import BOUNDS
from app.api.services import ApiServices
from app.domain.terms import ChainState, StudyState
from app.events import DatabaseUnavailable, SlotRecord
from app.outages import LostRace, broker_is_unavailable
from app.service import queries
from app.service.slot_use import STATES, slot_state
from stagetree.system.memory import resident_bytes

LIVE_CHAINS = (ChainState.READY, ChainState.RUNNING, ChainState.SAVING)

UNDELIVERED_SECONDS = 5.0
"""A message that no worker has taken for this long is counted. Otherwise it takes milliseconds."""

QUEUES = ("outbox", "saver")


class MetricSample(NamedTuple):
    value: float
    labels: Mapping[str, str] = {}
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """A metric and its samples."""

    name: str
    meaning: str
    samples: Sequence[MetricSample]
    kind: str = "gauge"

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.meaning}"
        yield f"# TYPE {self.name} {self.kind}"
        for value, labels, suffix in self.samples:
            pairs = ",".join(f'{name}="{_escape(text)}"' for name, text in labels.items())
            yield f"{self.name}{suffix}{{{pairs}}} {value}" if pairs else f"{self.name}{suffix} {value}"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def metrics_text(use: ApiServices, *, is_known: bool) -> str:
    """All metrics that are known now. is_known: whether the caller is; others get readiness alone."""
    checks = use.checks.ask()
    ready = {name: int(answer == "ok") for name, answer in checks.items()}
    metrics = [_labelled("stagetree_ready", "Whether a check of readiness is met.", "check", ready)]
    if is_known:
        metrics += _process_metrics(use)
        if checks.get("broker", "ok") == "ok":
            metrics.append(_dropped_messages(use))
        if checks.get("database", "ok") == "ok":  # or each question would wait for it
            with suppress(DatabaseUnavailable, LostRace):  # the check will notice
                metrics += _database_metrics(use)
    return "\n".join(line for metric in metrics for line in metric.lines()) + "\n"


def _unlabelled(name: str, meaning: str, value: float | None) -> MetricFamily:
    """One number; None: unknown."""
    return MetricFamily(name, meaning, [] if value is None else [MetricSample(value)])


def _labelled(name: str, meaning: str, label: str, values: Mapping[str, float], kind: str = "gauge") -> MetricFamily:
    samples = [MetricSample(value, {label: str(each)}) for each, value in values.items()]
    return MetricFamily(name, meaning, samples, kind)


def _process_metrics(use: ApiServices) -> Iterator[MetricFamily]:
    yield _unlabelled("stagetree_api_memory_bytes", "Memory of this process.", resident_bytes(os.getpid()))
    meaning = "How often the log lost events that this server had read."
    yield _unlabelled("stagetree_lost_commits", meaning, use.plans.losses)
    samples = list[MetricSample]()
    for route, times in use.request_times.histograms().items():
        for bound, count in zip(BOUNDS, accumulate(times.counts), strict=True):
            limit = "+Inf" if bound == inf else f"{bound:g}"
            samples.append(MetricSample(count, {"route": route, "le": limit}, "_bucket"))
        samples.append(MetricSample(round(times.total, 6), {"route": route}, "_sum"))
        samples.append(MetricSample(sum(times.counts), {"route": route}, "_count"))
    yield MetricFamily("stagetree_request_seconds", "Until an answer began, by route.", samples, "histogram")


def _dropped_messages(use: ApiServices) -> MetricFamily:
    try:
        count = use.dropped_messages()
    except Exception as error:
        if not broker_is_unavailable(error):
            raise
        count = None  # the check will notice
    return _unlabelled("stagetree_dropped_messages", "What workers dropped, as none of us can have sent it.", count)


def _database_metrics(use: ApiServices) -> list[MetricFamily]:
    """Raises `DatabaseUnavailable`, `LostRace`."""
    lease = use.lease_seconds
    with use.records.read() as rows:
        now, last_tick, slots, chains = rows.now(), rows.schedulers.last_tick(), rows.slots.all(), rows.chains.live()
        studies, schedulers = rows.studies.count_by_state(), rows.schedulers.memory(lease)
        held_up = len(rows.schedulers.last_report()[1])
    states = Counter(slot_state(row, now, lease) for row in slots)
    chain_states = Counter(row.state for row in chains)
    demand = queries.last_demand(use)
    wanted = {} if demand is None else {"busy": demand.busy, "more": demand.more}
    tick_age = None if last_tick is None else round(now - last_tick, 3)
    waiting = (row for row in chains if row.state == ChainState.READY)
    undelivered = sum(now - row.dispatched_at > UNDELIVERED_SECONDS for row in waiting)
    return [
        _labelled("stagetree_studies", "Studies by state.", "state", {s: studies.get(s, 0) for s in StudyState}),
        _labelled("stagetree_slots", "Slots by state.", "state", {s: states[s] for s in STATES}),
        _labelled("stagetree_chains", "Chains under way by state.", "state", {s: chain_states[s] for s in LIVE_CHAINS}),
        _labelled("stagetree_demand", "Slots that have work, and further ones that would.", "slots", wanted),
        _labelled("stagetree_failures_total", "Failures and accidents.", "kind", use.failure_counts.look(), "counter"),
        _unlabelled("stagetree_log_head", "The position of the last event.", use.log.head()),
        _unlabelled("stagetree_held_up", "Studies and plans that an error holds up.", held_up),
        _unlabelled("stagetree_scheduler_tick_age_seconds", "Since a scheduler last looked.", tick_age),
        _unlabelled("stagetree_undelivered_messages", "Messages that no worker took.", undelivered),
        _labelled("stagetree_scheduler_memory_bytes", "Memory of each scheduler.", "process", schedulers),
        *_slot_metrics([row for row in slots if row.gauges and row.was_seen(now, lease)], now),
    ]


def _slot_metrics(slots: Sequence[SlotRecord], now: float) -> Iterator[MetricFamily]:
    """slots: whose workers are alive, with the gauges of their last heartbeat."""
    gauges = {row.name: (row.gauges or {}, now - row.seen_at) for row in slots}
    ages = {name: round(each["step_age"] + since, 3) for name, (each, since) in gauges.items() if "step_age" in each}
    sizes, seconds = list[MetricSample](), list[MetricSample]()
    for name, (each, since) in gauges.items():
        for queue in QUEUES:
            labels, waited = {"slot": name, "queue": queue}, each[f"{queue}_seconds"]
            sizes.append(MetricSample(each[queue], labels))
            seconds.append(MetricSample(round(waited + since, 3) if each[queue] else 0, labels))
    workers = {name: each["memory"] for name, (each, _) in gauges.items()}
    trainers = {name: each["trainer_memory"] for name, (each, _) in gauges.items()}
    yield _labelled("stagetree_slot_memory_bytes", "Memory of each slot's worker.", "slot", workers)
    yield _labelled("stagetree_trainer_memory_bytes", "Memory of each slot's trainer.", "slot", trainers)
    yield _labelled("stagetree_slot_step_age_seconds", "Since a slot trained its last step.", "slot", ages)
    yield MetricFamily("stagetree_slot_backlog", "Facts and states that wait to be recorded or stored.", sizes)
    yield MetricFamily("stagetree_slot_backlog_seconds", "Since one of them was done.", seconds)
