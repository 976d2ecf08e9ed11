"""A study comes in: on which plan it is, what it is called, and what is settled of it now."""

from __future__ import annotations

import re
import unicodedata
from hashlib import sha256

from app.api.commands.writing import Write
from app.api.services import Services
from app.domain import commands as c
from app.domain import events as e
from app.domain.decide import decide
from app.domain.ids import StudyId, plan_id
from app.registry import TrainerSource
from app.scheduling.tuners.custom import with_version
from stagetree.spec import StudySpec


def submit(use: Services, write: Write, spec: StudySpec, trainer: TrainerSource) -> e.StudySubmitted:
    """The event that says so. The same idempotency key gives the same one. Raises what `write` raises."""
    spec = spec.with_sampling_seed(int(sha256(use.new_id().encode()).hexdigest()[:8], 16))  # on record: replay draws it
    spec = spec.drawing_distinctly()
    plan, study = opened(spec, trainer), _new_id(use, spec.name)
    stream = plan_id(spec.trainer, trainer.version, plan.trainer_args, plan.seed, plan.determinism, plan.packing)
    command = c.SubmitStudy(plan=plan, study=study, spec=with_version(spec.to_json()), at=use.clock())
    submitted = write(stream, lambda plan: decide(plan, command, use.limits))[-1].event
    assert isinstance(submitted, e.StudySubmitted)
    return submitted


def opened(spec: StudySpec, trainer: TrainerSource) -> e.PlanOpened:
    """The plan that the study is on."""
    return e.PlanOpened(
        trainer=spec.trainer,
        trainer_version=trainer.version,
        trainer_args=dict(spec.trainer_args),
        seed=spec.seed,
        determinism=spec.determinism,
        packing=spec.lanes,
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
