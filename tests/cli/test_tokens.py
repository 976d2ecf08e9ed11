"""`stagetree token`, and where clients find theirs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commandline import Stagetree
from stores import still_store

from stagetree.client import StagetreeError
from stagetree.client.http import known_token


@pytest.fixture
def store(tmp_path: Path) -> Path:
    still_store(tmp_path / "kept")
    return tmp_path / "kept"


def test_a_token_is_printed_once_listed_and_revoked(stagetree: Stagetree, store: Path) -> None:
    made = stagetree("token", "create", "ci", "--project", "vision", "--dir", store)
    assert made.code == 0 and made.out.startswith("stagetree_")
    listed = stagetree("tokens", "--dir", store)
    assert listed.out.split("\n")[1].split()[:5] == ["ci", "submit", "vision", "-", "-"]
    assert made.out.strip() not in listed.out
    assert stagetree("token", "revoke", "ci", "--dir", store).out == "ci is revoked\n"
    found = json.loads(stagetree("tokens", "--dir", store, "-o", "json").out)
    assert found[0]["revoked_at"] > 1e9 and "digest" not in found[0]


def test_a_token_may_have_a_budget_of_slot_time(stagetree: Stagetree, store: Path) -> None:
    assert stagetree("token", "create", "bot", "--max-slot-seconds", "3600", "--dir", store).code == 0
    assert stagetree("tokens", "--dir", store).out.split("\n")[1].split()[3] == "3600"
    found = json.loads(stagetree("tokens", "--dir", store, "-o", "json").out)
    assert found[0]["max_slot_seconds"] == 3600 and "writes" not in found[0]
    admin = stagetree("token", "create", "b", "--scope", "admin", "--max-slot-seconds", "9", "--dir", store)
    assert admin.code == 2 and "an admin makes tokens without a budget" in admin.err
    said = stagetree("token", "create", "b", "--max-slot-seconds", "nan", "--dir", store)
    assert said.code == 2 and "must be a finite number" in said.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("create", "a b"), "NAME must be letters, digits and . _ @ -, at most 64, got 'a b'"),
        (("create", "x", "--scope", "root"), "--scope must be one of read, submit, operate, admin, got 'root'"),
        (("revoke", "unknown"), "there is no token unknown"),
    ],
)
def test_wrong_tokens_are_refused_in_a_sentence(
    stagetree: Stagetree, store: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    said = stagetree("token", *arguments, "--dir", store)
    assert (said.code, said.out) == (2, "")
    assert sentence in said.err


def test_a_name_is_given_once(stagetree: Stagetree, store: Path) -> None:
    assert stagetree("token", "create", "ci", "--dir", store).code == 0
    said = stagetree("token", "create", "ci", "--dir", store)
    assert said.code == 2 and "there is, or was, a token ci" in said.err


def test_a_client_finds_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("STAGETREE_TOKEN", raising=False)
    assert known_token(None) == ""
    file = tmp_path / "stagetree" / "token"
    file.parent.mkdir()
    file.write_text("of-the-file\n")
    file.chmod(0o644)
    with pytest.raises(StagetreeError, match=f"others can read {file}: chmod 600 {file}"):
        known_token(None)
    file.chmod(0o600)
    assert known_token(None) == "of-the-file"
    monkeypatch.setenv("STAGETREE_TOKEN", "of-the-environment")
    assert known_token(None) == "of-the-environment"
    assert known_token("given") == "given"
