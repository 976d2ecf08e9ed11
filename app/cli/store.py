"""A store without a server, read by the functions that the server's routes call.

A `Store` has the reading methods of `stagetree.client.Client`, and answers with equal documents. It writes notes, tags,
suggestions and retries, and deletes studies. It needs the server's packages, so commands import it where they use it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from app.cli.errors import FAILED, fail
from app.cli.options import DATABASE, check_store
from app.domain.events import PlanOpened, Profile
from app.domain.sampler_inputs import learned_text
from app.domain.terms import StudyId, Unknown
from app.events import Decide, Plans, StoredEvent, Write, last_profile, transact
from app.events.file_records import FileRecords
from app.events.schema_numbers import UnreadableSchema
from app.process.folder_lock import is_in_use
from app.registry import Catalogue
from app.service import html_report, queries, slot_use, study_changes
from app.service.files import kept_state, trial_metrics, write_state
from app.service.health import Checks, NotReady, check_schema
from app.service.plan_history import PlanHistories
from app.service.services import Services
from app.service.trial_logs import LogFolder
from app.settings import settings
from app.storage.object_store import open_store
from stagetree.errors import NotFound
from stagetree.models.pages import EventPage, SlotPage, StudyPage, TrialPage

if TYPE_CHECKING:
    from stagetree.spec import StudySpec

Json = dict[str, Any]

PAGE = 1000

FOLLOW_SECONDS = 0.5


class Store:
    """The studies in a folder. Exits with a message if there is no store."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place = folder, f"--dir {folder}"
        self._use = services_of(folder, Services)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self._use.records.close()

    @property
    def is_attended(self) -> bool:
        """Whether a stack works in the folder."""
        return is_in_use(self.folder)

    def check_work(self) -> None:
        """Exit with a message if no stack works in the folder."""
        if not self.is_attended:
            fail(f"no process serves {self.folder}: `stagetree run` with the same study file resumes it", FAILED)

    def ready(self) -> None:
        """A folder has no server to be ready; `check_work` tests whether a stack is running."""

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
        """The events after position `after`, until the study is over."""
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
        """Write the weights of a trial, by default the best one, into a folder."""
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
        """The last measurement of the same trainer with such a batch, by `last_profile`."""
        return last_profile(self._use.log, opened, batch, kind, devices)

    def measured(self, plan: PlanOpened) -> Json:
        """The measured seconds and memory of steps on such a plan."""
        from app.service import submission

        return slot_use.measurements(self._use, submission.plan_name(plan))

    def learned(self, spec: StudySpec) -> list[str]:
        """Sentences on the results that a new study would learn. Raises `SpecError`."""
        from app.service import suggestions as searching

        return [learned_text(each) for each in searching.learn_results(self._use, spec, StudyId(""))]

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
        from app.service import suggestions as searching

        suggested = searching.suggest(self._use, self._use.find(study), self._write, suggestions)
        return [each.to_json() for each in suggested.items]

    def sampler(self, study: str, at: int | None = None) -> Json:
        from app.service import suggestions as searching

        return searching.sampler_state(self._use, self._use.find(study), at).to_json()

    def withdraw(self, study: str, suggestion: int) -> None:
        from app.service import suggestions as searching

        searching.withdraw(self._use, self._use.find(study), self._write, suggestion)

    def suggestions(self, study: str) -> list[Json]:
        from app.service import suggestions as searching

        return [each.to_json() for each in searching.suggestions(self._use, self._use.find(study)).items]

    def delete(self, study: str) -> None:
        study_changes.delete_study(self._use, self._use.find(study), self._write)

    def _write(self, stream: str, decide: Decide) -> list[StoredEvent]:
        use = self._use
        return transact(use.log, use.plans, Write(stream=stream, decide=decide, at=use.clock()))


@contextmanager
def _not_found() -> Iterator[None]:
    """Raise `NotFound` as a client of a server does."""
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


Made = TypeVar("Made", bound=Services)


def services_of(folder: Path, make: Callable[..., Made], stop_seconds: float = 0.0, **more: Any) -> Made:
    """The services of the store in a folder. Exits with a message if there is none, or an older one.

    make, more: the class of the services, and its further arguments.
    """
    check_store(folder)
    records = FileRecords(folder.resolve() / DATABASE)
    try:
        check_schema(records)
    except UnreadableSchema as problem:
        fail(str(problem))
    except NotReady as problem:
        fail(f"{folder}: {problem}; `stagetree up --dir {folder}` brings it up to date, if it is of an older stagetree")
    return make(
        records=records,
        plans=Plans(records.log),
        plan_histories=PlanHistories(records.log),
        trainers=Catalogue(()),
        wake_scheduler=lambda: None,
        clock=time.time,
        new_id=lambda: "",
        checks=Checks({}),
        lease_seconds=settings().lease_seconds,
        stop_seconds=stop_seconds,
        logs=LogFolder(folder / "logs"),
        checkpoints=str(folder.resolve() / "checkpoints"),
        **more,
    )
