"""The page as the API serves it; in a browser it is looked at in `tests/page`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient


def test_the_page_comes_with_a_strict_policy(http: TestClient, page_folder: Path) -> None:
    (page_folder / "index.html").write_text("<title>page</title>")
    answer = http.get("http://test/")
    assert (answer.status_code, answer.text) == (200, "<title>page</title>")
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["Cache-Control"] == "no-cache"


def test_assets_are_kept_for_ever(http: TestClient, page_folder: Path) -> None:
    (page_folder / "assets").mkdir()
    (page_folder / "assets" / "index-1.js").write_text("1")
    answer = http.get("http://test/assets/index-1.js")
    assert (answer.status_code, answer.text) == (200, "1")
    assert "immutable" in answer.headers["Cache-Control"]


@pytest.mark.parametrize("name", ["none.js", "..%2findex.html", "%2e%2e", ".hidden", "a/b.js"])
def test_only_assets_are_served(http: TestClient, page_folder: Path, name: str) -> None:
    (page_folder / "index.html").write_text("page")
    (page_folder / ".hidden").write_text("secret")
    assert http.get(f"http://test/assets/{name}").status_code in (404, 422)


def test_an_unbuilt_page_names_the_missing_step(http: TestClient, page_folder: Path) -> None:
    assert "make page" in http.get("http://test/").text
    (page_folder / "problem.txt").write_text("no <network>")
    answer = http.get("http://test/")
    assert answer.status_code == 503 and "no &lt;network&gt;" in answer.text and "docs" in answer.text


def test_a_report_holds_the_page_and_its_answers(http: TestClient, tuned_study: str, built_page: None) -> None:
    answer = http.get(f"/studies/{tuned_study}/report")
    assert answer.headers["Content-Disposition"].endswith(f'{tuned_study}.html"')
    assert answer.text.count("</script>") == 2 and "p {}" in answer.text and "src=" not in answer.text
    said = json.loads(answer.text.partition('id="answers">')[2].partition("</script>")[0])
    assert (
        said[f"studies/{tuned_study}/trials:columns?digits=6"]
        == http.get(f"/studies/{tuned_study}/trials:columns").json()
    )
    assert said[f"studies/{tuned_study}/trials/1"]["trial"] == 1


def test_there_is_no_report_without_a_page(http: TestClient, tuned_study: str, page_folder: Path) -> None:
    answer = http.get(f"/studies/{tuned_study}/report")
    assert answer.status_code == 404 and "make page" in answer.json()["detail"]
