"""docker/kubernetes.yaml follows the schemas of Kubernetes, and our code knows its commands and settings."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml

from app.domain.slots import NAME
from app.settings import Settings
from stagetree.models.pages import Demand

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker" / "kubernetes.yaml"
OBJECTS: list[dict[str, Any]] = list(yaml.safe_load_all(FILE.read_text()))
COMPOSE = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
PODS = {each["metadata"]["name"]: each["spec"]["template"] for each in OBJECTS if "template" in each.get("spec", {})}
SETTINGS = next(each["data"] for each in OBJECTS if each["kind"] == "ConfigMap")


def command(pod: str) -> list[str]:
    [container] = PODS[pod]["spec"]["containers"]
    return [str(word) for word in container["command"]]


@pytest.mark.parametrize("each", OBJECTS, ids=lambda each: f"{each['kind']} {each['metadata']['name']}")
def test_every_object_is_valid_by_its_schema(each: dict[str, Any]) -> None:
    for version in ("1.29", kubernetes_validate.latest_version()):
        kubernetes_validate.validate(each, version, strict=True)


def test_the_commands_are_those_of_compose() -> None:
    assert command("stagetree-migrate") == COMPOSE["migrate"]["command"]
    assert command("stagetree-scheduler") == COMPOSE["scheduler"]["command"]
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    assert f"CMD {json.dumps(command('stagetree-api'))}" in dockerfile
    worker = [word.replace("$(POD)-", "") for word in command("stagetree-worker")]
    assert worker == COMPOSE["worker-gpu0"]["command"]


def test_each_pod_of_workers_is_a_slot() -> None:
    """Their names stay, from start to start."""
    [worker] = [each for each in OBJECTS if each["kind"] == "StatefulSet"]
    words = command(worker["metadata"]["name"])
    assert NAME.fullmatch(words[words.index("-Q") + 1].replace("$(POD)", f"{worker['metadata']['name']}-1"))


def test_settings_exist_and_workers_have_time_to_save(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {f"STAGETREE_{field.upper()}" for field in Settings.model_fields}
    assert set(SETTINGS) <= known
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    seconds = {pod["spec"].get("terminationGracePeriodSeconds") for name, pod in PODS.items() if "migrate" not in name}
    assert min(seconds) > Settings().stop_seconds


def test_selectors_and_references_lead_somewhere() -> None:
    labels = [pod["metadata"]["labels"] for name, pod in PODS.items() if "migrate" not in name]
    services = {each["metadata"]["name"]: each["spec"] for each in OBJECTS if each["kind"] == "Service"}
    assert all(service["selector"] in labels for service in services.values())
    [workers] = [each for each in OBJECTS if each["kind"] == "StatefulSet"]
    headless = services[workers["spec"]["serviceName"]]  # otherwise the pods have no names in DNS
    assert headless["clusterIP"] == "None"
    assert headless["selector"] == workers["spec"]["selector"]["matchLabels"]
    for each in OBJECTS:
        if "selector" in each.get("spec", {}) and each["kind"] != "Service":
            assert each["spec"]["selector"]["matchLabels"] == each["spec"]["template"]["metadata"]["labels"]
    for pod in PODS.values():
        volumes = {volume["name"] for volume in pod["spec"].get("volumes", ())}
        [container] = pod["spec"]["containers"]
        assert {mount["name"] for mount in container.get("volumeMounts", ())} == volumes


@pytest.mark.parametrize("is_there", [True, False])
def test_the_torch_of_a_cuda_image_is_kept(is_there: bool, tmp_path: Path) -> None:
    """The instruction of the Dockerfile, with a Python that has torch and one without."""
    for name, does in {"python": f"exit {int(not is_there)}", "pip": 'echo "$@" > asked'}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{does}\n")
        (tmp_path / name).chmod(0o755)
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    [instruction] = re.findall(r'^RUN (python -c "import torch".*?)(?<!\\)$', dockerfile, re.M | re.S)
    shell = ["bash", "-o", "pipefail", "-c", instruction.replace("\\\n", "")]
    subprocess.run(shell, cwd=tmp_path, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, check=True)
    asked = tmp_path / "asked"
    assert asked.exists() != is_there
    assert is_there or "torch-cpu.txt" in asked.read_text()
    assert not re.search(r"^torch(vision)?==", (ROOT / "docker" / "requirements.txt").read_text(), re.M)


# ------------------------------------------------------------------------------------------------ autoscaling

KEDA = list(yaml.safe_load_all((ROOT / "docker" / "keda.yaml").read_text()))


def test_keda_queries_an_existing_metric_and_scales_an_existing_set() -> None:
    """Kubernetes does not include the schemas of KEDA."""
    authentication, scaled = KEDA
    target = scaled["spec"]["scaleTargetRef"]
    assert any((each["kind"], each["metadata"]["name"]) == (target["kind"], target["name"]) for each in OBJECTS)
    [trigger] = scaled["spec"]["triggers"]
    url = urlsplit(trigger["metadata"]["url"])
    assert url.hostname in SETTINGS["STAGETREE_HOSTS"].split(",") and url.port == 8000
    assert url.hostname in {each["metadata"]["name"] for each in OBJECTS if each["kind"] == "Service"}
    assert url.path == "/api/v1/demand"
    assert Demand.model_fields[trigger["metadata"]["valueLocation"]].annotation is int
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
    assert [each["parameter"] for each in authentication["spec"]["secretTargetRef"]] == ["token"]
