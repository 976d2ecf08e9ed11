"""A report for others contains none of the secrets of a study, in any field."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from app.service.redaction import HIDDEN, Redactor
from tests.api.world import study_file
from tests.plans import max_examples

SECRETS = [
    "/home/anna/data/train.csv",
    "~/models/best.pt",
    "../shared/secret",
    "C:\\Users\\anna\\model.pt",
    "data/private/train",
    "s3://bucket-of-anna/states",
    "postgresql://anna:pass@db.internal/stagetree",
    "http://10.0.0.7:8000/api",
    "10.0.0.7",
    "db.internal:5432",
    "localhost:6379",
    "anna@example.org",
    "git@github.com:anna/secret.git",
]
HIDING = Redactor(["anna", "node-17"], ["gpu0@node-17", "gpu1@node-17"])


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for name, each in value.items() for text in (name, *strings(each))]
    if isinstance(value, list):
        return [text for each in value for text in strings(each)]
    return [value] if isinstance(value, str) else []


@pytest.mark.slow
@pytest.mark.parametrize("secret", [*SECRETS, "anna", "node-17"])
@pytest.mark.parametrize(
    "around", ["{}", "cannot read {}", 'File "{}", line 3', "path={}.", "({})", "'{}', and more", "{}\n"]
)
def test_no_secret_is_left_in_a_text(secret: str, around: str) -> None:
    assert secret not in HIDING.text(around.format(secret))


@pytest.mark.parametrize(
    "text",
    [
        "trial 3 is promoted to step 8: rank 2 of 9",
        "0:42",
        "lr 0.1 → 0.01",
        "and/or",
        "2/3",
        "val_accuracy",
        "12:05",
        "loss <= 3",
    ],
)
def test_plain_text_is_not_masked(text: str) -> None:
    assert HIDING.text(text) == text


@max_examples(60)
@given(
    st.recursive(
        st.sampled_from([*SECRETS, "fine"]),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([*SECRETS, "a", "by"]), inner),
        max_leaves=20,
    )
)
def test_no_secret_is_left_however_deep(answer: Any) -> None:
    found = " ".join(strings(HIDING.redact({"answer": answer})))
    assert not [secret for secret in SECRETS if secret in found]


def test_slots_are_numbered_and_drawings_stay_drawings() -> None:
    assert HIDING.redact(["gpu0@node-17", "gpu1@node-17"]) == ["slot 0", "slot 1"]
    svg = "<svg><title>a</title><style>.a{b:c}</style><g><text>gpu0@node-17 /etc/passwd</text></g></svg>"
    assert (
        HIDING.redact(svg) == f"<svg><title>a</title><style>.a{{b:c}}</style><g><text>slot 0 {HIDDEN}</text></g></svg>"
    )


def test_a_public_report_holds_no_secret(http: TestClient, tuned_study: str, built_page: None) -> None:
    for secret in SECRETS:
        http.post(
            f"/studies/{tuned_study}/notes", json={"text": f"see {secret} there", "trial": None}
        ).raise_for_status()
    whole, public = (
        http.get(f"/studies/{tuned_study}/report", params=params).text for params in ({}, {"public": True})
    )
    said = [json.loads(text.partition('id="answers">')[2].partition("</script>")[0]) for text in (whole, public)]
    before, after = (" ".join(strings(each)) for each in said)
    assert [secret for secret in SECRETS if secret not in before] == []
    assert [secret for secret in SECRETS if secret in after] == []
    slots = {slot["name"] for slot in http.get("/slots").json()["items"]}
    hosts = {slot["host"] for slot in http.get("/slots").json()["items"]}
    assert not [text for text in strings(said[1]) if text in slots | hosts]
    assert said[0].keys() == said[1].keys()
    assert 'property="og:description"' in public and 'property="og:title"' in public


def test_a_preview_has_a_picture_where_the_report_will_be_somewhere(
    http: TestClient, tuned_study: str, built_page: None
) -> None:
    """A picture must have a whole address: without one, links show words only."""
    path = f"/studies/{tuned_study}/report"
    assert "og:image" not in http.get(path).text and 'content="summary"' in http.get(path).text
    for url, picture in (
        ("https://example.org/a/b.html?c=1", "https://example.org/a/b.png"),
        ("http://example.org/a%20b", "http://example.org/a%20b.png"),
        ("https://example.org/a/", f"https://example.org/a/{tuned_study}.png"),
        ("https://example.org", f"https://example.org/{tuned_study}.png"),
    ):
        text = http.get(path, params={"public": True, "url": url}).text
        assert f'property="og:image" content="{picture}"' in text
        assert 'name="twitter:card" content="summary_large_image"' in text
    for url in ("b.html", "/a/b.html", "file:///a/b.html", "https:///b.html", "http://[", 'ftp://"'):
        answer = http.get(path, params={"url": url})
        assert answer.status_code == 422 and "must be the whole address of the report" in answer.text, url
    quoted = http.get(path, params={"url": 'https://example.org/"><script>/b.html'}).text
    assert 'content="https://example.org/&quot;&gt;&lt;script&gt;/b.html"' in quoted


def test_the_picture_of_a_public_report_holds_no_secret(http: TestClient) -> None:
    image = pytest.importorskip("PIL.Image")
    study = http.post("/studies", json=study_file(name="of anna@example.org")).raise_for_status().json()["study"]
    path = f"/studies/{study}/film"
    drawn = [http.get(path, params={"public": public}).text for public in (False, True)]
    assert ["anna@example.org" in text for text in drawn] == [True, False] and HIDDEN in drawn[1]
    pictures = [http.get(path, params={"format": "png", "public": public}).content for public in (False, True)]
    assert pictures[0] != pictures[1]
    assert {image.open(io.BytesIO(content)).size for content in pictures} == {(1200, 630)}
