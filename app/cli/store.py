"""A store without a server: what its folder holds, read with the functions that the server's routes call.

A `Store` answers like a `stagetree.client.Client`, as far as reading goes, and with equal documents. It writes only
notes, tags and suggestions, and to let go of a study. It needs the server's parts: what may do without them imports
this where it is used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from app.cli.errors import FAILED, fail
from app.cli.opened_folder import services_of
from app.domain.events import PlanOpened, Profile
from app.domain.sampler_inputs import learned_text
from app.domain.terms import StudyId, Unknown
from app.embedded.folder_lock import is_in_use
from app.events import Decide, StoredEvent, Write, last_profile, transact
from app.service import html_report, queries, slot_use, study_changes, submission
from app.service import suggestions as searching
from app.service.files import kept_state, trial_metrics, write_state
from app.service.services import Services
from app.storage.object_store import open_store
from stagetree.errors import NotFound
from stagetree.models.pages import EventPage, SlotPage, StudyPage, TrialPage
from stagetree.spec import StudySpec

Json = dict[str, Any]
PAGE = 1000
FOLLOW_SECONDS = 0.5


class Store:
    """The studies in a folder. Ends with a message where there is no store."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place = folder, f"--dir {folder}"
        self._use = services_of(folder, Services)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self._use.records.close()

    @property
    def is_attended(self) -> bool:
        """Whether a stack is at work in the folder."""
        return is_in_use(self.folder)

    def check_work(self) -> None:
        """End with a message if nobody is at work in the folder, so that nothing there goes on."""
        if not self.is_attended:
            fail(f"no process serves {self.folder}: `stagetree run` with the same study file resumes it", FAILED)

    def ready(self) -> None:
        """Whoever is at work in the folder answers nobody; that somebody is there is `check_work`'s to say."""

    def studies(self, *, limit: int = PAGE, state: Collection[str] = ()) -> Iterator[Json]:
        return _pages(lambda cursor: queries.studies(self._use, limit, cursor, state))

    def study(self, study: str, *, trials: bool = True) -> Json:
        return queries.study(self._use, self._use.find(study), with_trials=trials)[0].to_json()

    def trials(self, study: str, *, limit: int = PAGE) -> Iterator[Json]:
        row = self._use.find(study)
        return _pages(lambda cursor: queries.trials(self._use, row, limit, cursor))

    def trial(self, study: str, number: int) -> Json:
        with _not_found():
            return queries.trial(self._use, self._use.find(study), number).to_json()

    def events(self, study: str, after: int = 0, *, limit: int = PAGE) -> Iterator[Json]:
        row = self._use.find(study)
        return _pages(lambda cursor: queries.events(self._use, row, limit, after, cursor))

    def follow(self, study: str, after: int = 0) -> Iterator[Json]:
        """What has happened behind position `after`, and what happens, until the study is over."""
        while True:
            is_over = self.study(study, trials=False)["finished_at"] is not None
            for event in self.events(study, after):
                after = event["position"]
                yield event
            if is_over:
                return
            self.check_work()
            time.sleep(FOLLOW_SECONDS)

    def plan(self, study: str) -> Json:
        return queries.plan(self._use, self._use.find(study)).to_json()

    def environment(self, study: str) -> Json:
        return queries.environment(self._use, self._use.find(study)).to_json()

    def stage_tree(self, study: str) -> Json:
        return queries.stage_tree(self._use, self._use.find(study)).to_json()

    def replay(self, study: str, at: int | None = None) -> Json:
        return html_report.replay(self._use, self._use.find(study), at).to_json()

    def log(self, study: str) -> str:
        return "".join(html_report.log(self._use, self._use.find(study)))

    def report(self, study: str, *, public: bool = False, url: str = "") -> str:
        with _not_found():
            return html_report.report(self._use, self._use.find(study), public=public, url=url)

    def checkpoint(self, study: str, to: Path, *, trial: int | None = None, step: int | None = None) -> Path:
        """Write the weights of a trial into a folder; by default of the best one."""
        with _not_found():
            with self._use.open_study(self._use.find(study)) as (plan, there):
                state = kept_state(plan, there, trial, step)
            return write_state(open_store(self._use.checkpoints), study, state, to, whole=False).path

    def film(self, study: str, kind: str = "svg", *, public: bool = False) -> bytes:
        return html_report.film(self._use, self._use.find(study), kind, public=public)

    def slots(self, *, estimates: bool = False) -> list[Json]:
        return list(_pages(lambda cursor: queries.slots(self._use, PAGE, cursor, estimates=estimates)))

    def release_slot(self, slot: str) -> None:
        study_changes.release_slot(self._use, slot)

    def profile(self, opened: PlanOpened, batch: Json, kind: type[Profile], devices: Sequence[str]) -> Profile | None:
        """The last measurement of the same trainer, with such a batch, as of `last_profile`."""
        return last_profile(self._use.log, opened, batch, kind, devices)

    def measured(self, plan: PlanOpened) -> Json:
        """The seconds and the memory of steps, as measured on such a plan."""
        return slot_use.measured(self._use, submission.average_id(plan))

    def learned(self, spec: StudySpec) -> list[str]:
        """What a new study would begin with, in sentences. Raises `SpecError`."""
        return [learned_text(each) for each in searching.learned(self._use, spec, StudyId(""))]

    def trial_log(self, study: str, number: int) -> str:
        return "".join(queries.trial_log(self._use, self._use.find(study), number))

    def logged(self, study: str, number: int) -> list[Json]:
        return [point.to_json() for point in trial_metrics(self._use, self._use.find(study), number).items]

    def add_note(self, study: str, text: str, trial: int | None = None) -> Json:
        return study_changes.add_note(self._use, self._use.find(study), self._write, text, trial).to_json()

    def correct_note(self, study: str, event: int, text: str) -> Json:
        study_changes.correct_note(self._use, self._use.find(study), self._write, event, text)
        return next(note for note in self.study(study, trials=False)["notes"] if note["event"] == event)

    def label(self, study: str, add: Sequence[str], remove: Sequence[str], attributes: Json) -> Json:
        study_changes.label(self._use, self._use.find(study), self._write, add, remove, attributes)
        return self.study(study, trials=False)

    def retry_trial(self, study: str, number: int) -> Json:
        study_changes.retry_trial(self._use, self._use.find(study), self._write, number)
        return self.trial(study, number)

    def suggest(self, study: str, suggestions: Sequence[Json]) -> list[Json]:
        suggested = searching.suggest(self._use, self._use.find(study), self._write, suggestions)
        return [each.to_json() for each in suggested.items]

    def sampler(self, study: str, at: int | None = None) -> Json:
        return searching.sampler_state(self._use, self._use.find(study), at).to_json()

    def withdraw(self, study: str, suggestion: int) -> None:
        searching.withdraw(self._use, self._use.find(study), self._write, suggestion)

    def suggestions(self, study: str) -> list[Json]:
        return [each.to_json() for each in searching.suggestions(self._use, self._use.find(study)).items]

    def delete(self, study: str) -> None:
        study_changes.delete_study(self._use, self._use.find(study), self._write)

    def _write(self, stream: str, decide: Decide) -> list[StoredEvent]:
        use = self._use
        return transact(use.log, use.plans, Write(stream=stream, decide=decide, at=use.clock()))


@contextmanager
def _not_found() -> Iterator[None]:
    """Refuse as a server does."""
    try:
        yield
    except Unknown as error:
        raise NotFound(404, HTTPStatus.NOT_FOUND.phrase, str(error)) from None


def _pages(page: Callable[[str | None], StudyPage | TrialPage | EventPage | SlotPage]) -> Iterator[Json]:
    cursor: str | None = None
    while True:
        answer = page(cursor)
        yield from (item.to_json() for item in answer.items)
        if (cursor := answer.next_cursor) is None:
            return
