"""No web page acts on a local server: not from another origin, and not by a name that points here."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.api.world import API


@pytest.fixture
def local(app: FastAPI) -> TestClient:
    return TestClient(app, base_url=f"http://test{API}", headers={"Host": "127.0.0.1:8000"})


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "", "["]
)
def test_a_name_that_points_here_is_not_answered(local: TestClient, study: str, host: str) -> None:
    for method, path in (("GET", "/studies"), ("POST", f"/studies/{study}:cancel"), ("GET", "http://x/healthz")):
        answer = local.request(method, path, headers={"Host": host})
        assert answer.status_code == 421
        assert answer.headers["content-type"] == "application/problem+json"
    assert local.get(f"/studies/{study}").json()["state"] == "running"


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "[::1]:8000", "192.168.1.7", "TEST"])
def test_addresses_and_names_of_its_own_are_answered(local: TestClient, host: str) -> None:
    assert local.get("/studies", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9000"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    ],
)
def test_a_page_of_another_site_is_not_obeyed(local: TestClient, study: str, headers: dict[str, str]) -> None:
    """A POST with no body, or as text/plain, is sent by a browser without asking first."""
    answer = local.post(f"/studies/{study}:cancel", headers={**headers, "Content-Type": "text/plain"})
    assert answer.status_code == 403
    assert local.get(f"/studies/{study}").json()["state"] == "running"


def test_its_own_pages_and_links_are_answered(local: TestClient, study: str) -> None:
    own = {"Origin": "http://127.0.0.1:8000", "Sec-Fetch-Site": "same-origin"}
    assert local.post(f"/studies/{study}:pause", headers=own).status_code == 200
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert local.get("/studies", headers=link).status_code == 200


def test_no_browser_guesses_the_type_of_an_answer(local: TestClient, study: str) -> None:
    """What trainers print and users write is in some of them."""
    paths = (
        f"/studies/{study}",
        "/studies/none",
        f"/studies/{study}/trials/0/log",
        "/metrics",
        "http://127.0.0.1:8000/",
    )
    for path in paths:
        assert local.get(path).headers["x-content-type-options"] == "nosniff"
    assert local.get("/studies", headers={"Host": "evil.example"}).headers["x-content-type-options"] == "nosniff"


def test_an_answer_that_is_opened_by_itself_runs_nothing(local: TestClient, study: str) -> None:
    """An SVG may hold scripts, and a download may be opened; the pages have policies of their own."""
    paths = (f"/studies/{study}", f"/studies/{study}/film", f"/studies/{study}/log", "/studies/none", "/metrics")
    for path in paths:
        policy = local.get(path).headers["content-security-policy"]
        assert "sandbox" in policy and "default-src 'none'" in policy and "script" not in policy
    for page in ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/docs"):
        assert "sandbox" not in local.get(page).headers["content-security-policy"]
