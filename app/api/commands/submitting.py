"""A study comes in: on which plan it is, what it is called, and what is settled of it now."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from hashlib import sha256

from app.api.commands.beginning import Source, find_source, inputs_seen, stored
from app.api.commands.writing import Write
from app.api.services import Services
from app.domain import commands as c
from app.domain import events as e
from app.domain.decide import decide
from app.domain.ids import PlanId, StudyId, plan_id
from app.domain.inputs import mark
from app.registry import TrainerSource
from app.tuning.tuners.custom import with_version
from stagetree.spec import StudySpec


def submit(use: Services, write: Write, spec: StudySpec, trainer: TrainerSource) -> e.StudySubmitted:
    """The event that says so. The same idempotency key gives the same one. Raises what `write` raises."""
    spec = spec.with_sampling_seed(int(sha256(use.new_id().encode()).hexdigest()[:8], 16))  # on record: replay draws it
    spec = spec.drawing_distinctly()
    source = None if spec.begin_from is None else find_source(use, spec.begin_from)
    inputs = inputs_seen(use, spec.inputs)
    plan, study = opened(spec, trainer, source, inputs), _new_id(use, spec.name)
    stream = name_of(plan)
    begin, is_new = None, True
    if source is not None:
        key, is_new = stored(use, stream, source)
        begin = {**source.said, "key": key, "sha256": source.sha256, "size": source.size}
    command = c.SubmitStudy(
        plan=plan,
        study=study,
        spec=with_version(spec.to_json()),
        at=use.clock(),
        begin=begin,
        inputs=inputs,
        has_new_weights=is_new,
    )
    submitted = write(stream, lambda plan: decide(plan, command, use.limits))[-1].event
    assert isinstance(submitted, e.StudySubmitted)
    return submitted


def name_of(plan: e.PlanOpened) -> PlanId:
    """Of a plan that begins so: what its name is made of is in that event."""
    return plan_id(
        plan.trainer,
        plan.trainer_version,
        plan.trainer_args,
        plan.seed,
        plan.determinism,
        plan.packing,
        plan.begin,
        plan.inputs,
    )


def opened(
    spec: StudySpec, trainer: TrainerSource, source: Source | None = None, inputs: Sequence[e.Json] = ()
) -> e.PlanOpened:
    """The plan that the study is on. source, inputs: of what it begins from and reads, what was found."""
    return e.PlanOpened(
        trainer=spec.trainer,
        trainer_version=trainer.version,
        trainer_args=dict(spec.trainer_args),
        seed=spec.seed,
        determinism=spec.determinism,
        packing=spec.lanes,
        begin=None if source is None else {"sha256": source.sha256, "state": source.said["state"]},
        inputs=[mark(each) for each in inputs],
    )


def _new_id(use: Services, name: str) -> StudyId:
    """The name made fit for a URL, and six characters of chance so that it is nobody else's."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", plain)[:56].strip("-") or "study"
    while True:
        study = f"{slug}-{use.new_id()[:6]}"
        with use.records.read() as rows:
            if rows.studies.find(study) is None:
                return StudyId(study)
