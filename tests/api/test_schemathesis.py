"""Requests made up from the document, right ones and wrong ones: every answer is one that the document knows."""

from __future__ import annotations

import time

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import positive_data_acceptance
from schemathesis.schemas import APIOperation

from app.api.access import needed_scope
from app.domain.terms import Scope
from app.main import create_app
from app.service.access import create
from app.settings import Settings
from tests.api.world import Workers
from tests.plans import MORE

EXAMPLES = 6
SAME_EACH_TIME = settings(
    max_examples=EXAMPLES * MORE,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

NOT_ASKED = [positive_data_acceptance]
"""A schema cannot say that a cursor is one of ours, that an idempotency key is new, or what fields mean together."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_unknown_names_find_nothing(app: FastAPI, tuned_study: str, workers: Workers, built_page: None) -> None:
    for found in schemathesis.openapi.from_asgi("/openapi.json", app).get_all_operations():
        workers.look()  # or no scheduler was seen lately, which is a 503
        probe(found.ok(), tuned_study)


def probe(operation: APIOperation, study: str) -> None:
    """Ask for one operation, also of a study that there is."""
    right, wrong = (operation.as_strategy(generation_mode=mode) for mode in GenerationMode)

    @SAME_EACH_TIME
    @given(right, st.booleans())
    def ask_right(case: schemathesis.Case, is_there: bool) -> None:
        _ask(case, study if is_there else None)

    @SAME_EACH_TIME
    @given(wrong, st.booleans())
    def ask_wrong(case: schemathesis.Case, is_there: bool) -> None:
        _ask(case, study if is_there else None)

    ask_right()
    if operation.body or operation.query:
        ask_wrong()


def _ask(case: schemathesis.Case, study: str | None) -> None:
    if study is not None and "study" in case.path_parameters:
        case.path_parameters["study"] = study
    case.call_and_validate(excluded_checks=NOT_ASKED)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scope", Scope)
def test_no_token_does_more_than_its_scope(
    sqlite_url: str, trainers: str, workers: Workers, tuned_study: str, scope: Scope
) -> None:
    """Any request, about a study of another user or about none."""
    how = {"database_url": sqlite_url, "trainers": trainers, "broker_url": "memory://", "hosts": "test,testserver,x"}
    guarded = create_app(Settings(access="always", **how))
    token = create(guarded.state.services.records, "someone", scope, "", 1, time.time())
    document = schemathesis.openapi.from_asgi("/openapi.json", guarded)
    for found in document.get_all_operations():
        workers.look()
        operation = found.ok()
        if operation.path.startswith("/api/"):
            stay_within(operation, tuned_study, scope, {"Authorization": f"Bearer {token}"})


def stay_within(operation: APIOperation, study: str, scope: Scope, headers: dict[str, str]) -> None:
    """Ask for one operation with a token of a scope."""
    least = needed_scope(operation.definition.raw["operationId"], operation.method.upper())

    @settings(SAME_EACH_TIME, max_examples=2 * MORE)
    @given(operation.as_strategy(generation_mode=GenerationMode.POSITIVE), st.booleans())
    def ask(case: schemathesis.Case, is_there: bool) -> None:
        if is_there and "study" in case.path_parameters:
            case.path_parameters["study"] = study
        for part in (case.query, case.body):
            if isinstance(part, dict):
                part.pop("project", None)  # one that is not the token's is a 403 with any scope
        status = case.call(headers=headers).status_code
        assert status < 500 and status != 401
        is_right = status == 403 if scope < least else status != 403 or (scope is Scope.SUBMIT and is_there)
        assert is_right, f"{case.as_curl_command()}: {status}"

    ask()
