"""`audit` on real slots: of a right trainer, of one with a hidden fault, and where nothing can be compared."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from audits import TRAINER, serving, study
from commandline import Stagetree
from stacks import ROOT, Service

from app.embedded.stack import Embedded
from stagetree.client import Client

pytestmark = pytest.mark.slow(together=True)

VERIFIED = "verified: every step at which trials part was compared, and a whole trial was equal"
OTHERS = ("off", "own", "beside", "changed")
"""Folders with the same studies."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Studies in which nothing was compared, since that was switched off."""
    folder = tmp_path_factory.mktemp("audits")
    (folder / "trainer.py").write_text(TRAINER)
    with serving(folder, proofs="0") as service:
        often = study("late", "late-often") | {"eval_every": 1}
        for spec in (study("right"), study("late"), study("late", "late-again"), often):
            found = service.run(spec)
            assert found["state"] == "completed" and found["exactness"]["verdict"] == "unchecked"
    for other in OTHERS:  # no process writes there any more
        shutil.copytree(folder / "kept", folder / other / "kept")
    return folder


@pytest.fixture(scope="module")
def running_stack(folder: Path) -> Iterator[Service]:
    """The same studies on slots that compare."""
    with serving(folder, proofs="1") as service:
        yield service


@pytest.fixture
def audit_study(running_stack: Service, stagetree: Stagetree, monkeypatch: pytest.MonkeyPatch) -> Stagetree:
    monkeypatch.setenv("STAGETREE_URL", running_stack.url)
    return lambda *arguments: stagetree("audit", *arguments)


def test_a_right_trainer_is_exact(audit_study: Stagetree, running_stack: Service) -> None:
    said = audit_study("right")
    lines = dict(line.split(maxsplit=1) for line in said.out.splitlines())
    assert (said.code, said.err) == (0, "")
    found = next(each for each in running_stack.client.studies() if each.name == "right")
    plan = running_stack.client.plan(found.study)
    assert lines["study"] == f"{found.study}, on {plan.plan}"
    assert lines["trainer"] == f"right at version {plan.trainer_version}"
    assert lines["verdict"] == VERIFIED
    assert re.fullmatch(r"[1-9]\d* times on CPU: 0 differ, 0 could not be compared", lines["compared"])
    assert "marked" not in lines
    assert re.fullmatch(r"[1-9]\d* verification steps", lines["trained"])
    assert re.fullmatch(r"identical, from \d+ events", lines["replay"])
    assert re.fullmatch(r"sha256 [0-9a-f]{64}", lines["log"])


def test_a_hidden_fault_is_detected_and_shown_beside_the_results(
    audit_study: Stagetree, running_stack: Service, stagetree: Stagetree
) -> None:
    """The step count matters from step 9 on, and is not in the state: two of the three values are wrong."""
    said = audit_study("late")
    text = "1 of 11 leaves differ, the first is trainer.weight"
    assert said.code == 1
    assert f"verdict   inexact, and shared results may be wrong: {text}" in said.out
    assert re.search(rf"step \d+, begun again at \d+: {text}", said.out)
    assert re.search(": [12] differ, 0 could not be compared", said.out) and "replay    identical" in said.out
    assert f"marked    3 of 3 trials\n          2: may be wrong: the trainer is not exact: {text}" in said.out
    assert said.out.count("; 1 stage ended with other bits when trained again\n") == 1, "of the two that are wrong"
    (study,) = {each.study for each in running_stack.client.studies() if each.name == "late"}
    assert all("may be wrong" in str(trial.exactness) for trial in running_stack.client.trials(study))
    assert "may be wrong" in stagetree("trial", study, 1).out


def test_metrics_are_compared_where_no_state_is_kept(audit_study: Stagetree) -> None:
    found = audit_study("late-often", "-o", "json").json
    assert len(found["differ"]) in (1, 2), "of the two trials that are wrong, on two slots"
    for test in found["differ"]:
        assert test["proof"] == ("handover" if test["begin"] else "whole") and 9 <= test["step"] <= 12, test
        of_metrics = r"value is -?[\d.]+ and -?[\d.]+\. Likely: "
        assert re.match(of_metrics if test["proof"] == "whole" else "1 of 11 leaves differ", test["difference"])


def test_a_script_reads_one_document(audit_study: Stagetree, running_stack: Service) -> None:
    said = audit_study("late-again", "-o", "json")
    found = said.json
    assert (said.code, said.err, found["verdict"]) == (1, "", "inexact")
    assert (found["trials"], [each["trial"] for each in found["marked"]]) == (3, [0, 1, 2])
    assert found["study"].startswith("late-again-") and found["trainer"] == "late"
    first, *_ = found["differ"]
    assert found["compared"] >= 1 and first["difference"] == found["reason"] and not found["not_comparable"]
    assert found["devices"] == ["CPU"] and found["replay"]["identical"] and found["proof_steps"] > 0
    again = audit_study("late-again", "-o", "json").json
    assert again["differ"] == found["differ"], "and nothing is trained once more"
    exact = audit_study("right", "-o", "json")
    assert (exact.code, exact.json["verdict"], exact.json["differ"]) == (0, "verified", [])


def test_a_study_that_is_not_there(audit_study: Stagetree) -> None:
    said = audit_study("rihgt")
    assert (said.code, said.out) == (3, "") and "there is no study rihgt" in said.err


def test_trials_trained_alone_need_no_comparison(audit_study: Stagetree, running_stack: Service) -> None:
    found = running_stack.run(study("wrong"))
    assert found["exactness"]["isolated"]
    said = audit_study(found["study"])
    assert (said.code, said.out) == (4, "")
    assert said.err == (
        f"stagetree: each trial of study {found['study']} was trained alone: there is nothing to compare\n"
    )


def test_an_audit_without_comparisons_says_so(
    folder: Path, stagetree: Stagetree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots of the command's own, on a store that it is given."""
    monkeypatch.setenv("STAGETREE_PROOFS", "0")
    kept, trainer = folder / "off" / "kept", folder / "trainer.py"
    said = stagetree("audit", "right", "--dir", kept, "--slots", 1, "--trainers", trainer)
    assert said.code == 4 and "nothing is compared here: STAGETREE_PROOFS is false" in said.err


def test_slots_of_the_command_compare_states_kept_in_a_folder(
    folder: Path, stagetree: Stagetree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGETREE_PROOFS", "1")
    kept, trainer = folder / "own" / "kept", folder / "trainer.py"
    said = stagetree("audit", "right", "--dir", kept, "--slots", 1, "--trainers", trainer)
    assert said.code == 0 and f"verdict   {VERIFIED}" in said.out


def test_another_waiting_study_is_named_beside_the_audit(
    folder: Path, stagetree: Stagetree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slots of the command have no trainer for it, and nothing said so."""
    monkeypatch.setenv("STAGETREE_PROOFS", "1")
    kept, slow = folder / "beside" / "kept", folder / "beside" / "slow.py"
    slow.write_text(f"import time\n{TRAINER}\n\nclass Slow(Right):\n    name = 'slow'\n")
    slow.write_text(slow.read_text() + "\n    def train(self):\n        time.sleep(0.2)\n        super().train()\n")
    stack = Embedded(kept, 1, [str(slow)])
    stack.start(await_slots=True)
    with Client(stack.url) as client:
        other = client.submit(study("slow")).study
    stack.stop()
    said = stagetree("audit", "right", "--dir", kept, "--slots", 1, "--trainers", folder / "trainer.py")
    assert said.code == 0 and f"verdict   {VERIFIED}" in said.out
    words = f"Beside the audit, {other} of this folder stands still: no slot has trainer slow at version "
    assert said.err.count(words) == 1


def test_slots_that_could_not_train_it_are_not_even_started(
    folder: Path, stagetree: Stagetree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would have waited for ever for a trainer that only they could bring."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trainer.py").write_text(TRAINER.replace("2.7", "2.6"))
    said = stagetree("audit", "right", "--dir", folder / "own" / "kept", "--slots", 1)
    assert said.code == 4 and "the study was trained with trainer right at version" in said.err
    assert said.err.endswith("an audit needs the file as it was then\n")
    (tmp_path / "trainer.py").unlink()
    said = stagetree("audit", "right", "--dir", folder / "own" / "kept")
    assert (said.code, said.err) == (2, "stagetree: trainer right is not here: give its file with --trainers FILE.py\n")
    said = stagetree("audit", "right", "--dir", folder / "nothing")
    assert said.code == 3 and "go to the folder of your studies, or name it" in said.err
    said = stagetree("audit", "right", "--dir", folder / "kept", "--server", "http://127.0.0.1:1")
    assert said.code == 2 and said.err.startswith("stagetree: --server is for the slots of a server")


def test_an_audit_says_why_it_waits_and_can_be_interrupted(
    folder: Path, stagetree: Stagetree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer's file was changed after the study: no slot has it as it was."""
    changed = folder / "changed"
    (changed / "trainer.py").write_text(TRAINER.replace("2.7", "2.6"))
    with serving(changed, proofs="1") as service:
        (study,) = {each.study for each in service.client.studies() if each.name == "right"}
        said = stagetree("audit", "right", "--server", service.url, "--timeout", 0.5)
        waits = f"{study}: the audit waits: no slot has trainer right at version "
        goes_on = f"the audit of {study} is still running. Wait for it again with: stagetree audit {study} --server"
        assert (said.code, said.out) == (124, "") and waits in said.err
        assert f"Not over after 0.5 seconds; {goes_on} {service.url}" in said.err
        command = [sys.executable, "-m", "stagetree", "audit", "right", "--server", service.url]
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as waiting:
            assert waiting.stderr is not None
            assert waits in waiting.stderr.readline()
            waiting.send_signal(signal.SIGINT)
            assert f"Stopped; {goes_on}" in waiting.stderr.read()
        assert waiting.returncode == 130
        assert service.client.study(study).exactness.audited, "the audit resumes when the trainer is back"
        (changed / "trainer.py").write_text(TRAINER)
        assert stagetree("audit", "right", "--server", service.url).code == 0
