"""The rendered Helm chart: valid objects, with the commands of docker/kubernetes.yaml.

Where helm is on PATH, it lints the chart and renders the stored file. Elsewhere only the stored file is tested, which
names the version of its chart.
"""

from __future__ import annotations

import json
import shutil
import subprocess

import jsonschema
import kubernetes_validate
import pytest
import yaml
from stacks import Json

from app.domain.slots import NAME
from app.settings import Settings
from stagetree.models.pages import Demand
from tools.chart import CHART, HEADER, RENDERED, ROOT, VALUES, digest, render

TEXT = RENDERED.read_text()
OBJECTS: list[Json] = [each for each in yaml.safe_load_all(TEXT) if each]
OWN = [each for each in OBJECTS if not each["apiVersion"].startswith("keda")]
EXAMPLE: list[Json] = list(yaml.safe_load_all((ROOT / "docker" / "kubernetes.yaml").read_text()))
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())

HELM = shutil.which("helm")
needs_helm = pytest.mark.skipif(HELM is None, reason="needs helm on PATH")


def name(each: Json) -> str:
    return f"{each['kind']} {each['metadata']['name']}"


def pods(objects: list[Json]) -> dict[str, Json]:
    return {name(each): each["spec"]["template"] for each in objects if "template" in each.get("spec", {})}


def container(pod: Json) -> Json:
    [only] = pod["spec"]["containers"]
    return dict(only)


def test_the_stored_file_is_rendered_from_this_chart() -> None:
    assert TEXT.startswith(f"{HEADER} {digest()}\n"), (
        "the chart has changed: run `python -m tools.chart`, with helm on PATH"
    )


@needs_helm
def test_helm_renders_the_stored_file() -> None:
    assert HELM is not None
    assert [each for each in yaml.safe_load_all(render(HELM)) if each] == OBJECTS


@needs_helm
def test_helm_finds_nothing_wrong() -> None:
    assert HELM is not None
    said = subprocess.run([HELM, "lint", "--strict", str(CHART)], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.slow
@pytest.mark.parametrize("each", OWN, ids=name)
def test_every_object_is_valid_by_its_schema(each: Json) -> None:
    for version in ("1.29", kubernetes_validate.latest_version()):
        kubernetes_validate.validate(each, version, strict=True)


def test_the_commands_are_those_of_the_example() -> None:
    ours, others = (
        {container(pod)["name"]: container(pod)["command"] for pod in pods(objects).values()}
        for objects in (OWN[: len(OWN) // 2], EXAMPLE)
    )
    assert ours == others


def test_each_selector_matches_one_kind_of_pod() -> None:
    labels = [pod["metadata"]["labels"] for of, pod in pods(OWN).items() if not of.startswith("Job")]
    assert len({tuple(sorted(each.items())) for each in labels}) == len(labels) == 7
    for each in OWN:
        selector = each.get("spec", {}).get("selector", {})
        selector = selector.get("matchLabels", selector)
        if selector:
            assert sum(selector.items() <= one.items() for one in labels) == 1, name(each)


def test_pods_refer_to_existing_services_settings_and_volumes() -> None:
    services = {each["metadata"]["name"] for each in OWN if each["kind"] == "Service"}
    maps = {each["metadata"]["name"]: each["data"] for each in OWN if each["kind"] == "ConfigMap"}
    assert all(set(data) <= {f"STAGETREE_{field.upper()}" for field in Settings.model_fields} for data in maps.values())
    for each in OWN:
        assert each["spec"]["serviceName"] in services if each["kind"] == "StatefulSet" else True
    for pod in pods(OWN).values():
        one = container(pod)
        settings = maps[one["envFrom"][0]["configMapRef"]["name"]]
        assert pod["spec"]["terminationGracePeriodSeconds"] == int(settings["STAGETREE_STOP_SECONDS"]) + 30
        mounted = {mount["name"] for mount in one.get("volumeMounts", ())}
        assert mounted == {volume["name"] for volume in pod["spec"].get("volumes", ())}


def test_each_pod_of_workers_is_a_slot_with_what_its_kind_needs() -> None:
    workers = {each["metadata"]["name"]: each for each in OWN if each["kind"] == "StatefulSet"}
    assert set(workers) == {"stagetree-worker", "other-h100", "other-cpu"}
    for of, each in workers.items():
        words = container(each["spec"]["template"])["command"]
        queue = words[words.index("-Q") + 1].replace("$(POD)", f"{of}-1")
        assert NAME.fullmatch(queue) and queue.endswith("cpu0" if of == "other-cpu" else "gpu0")
    limits = {of: container(each["spec"]["template"])["resources"].get("limits") for of, each in workers.items()}
    assert limits["stagetree-worker"] == {"nvidia.com/gpu": "1"} and not limits["other-cpu"]
    assert limits["other-h100"] == {"nvidia.com/gpu": "1", "memory": "96Gi"}
    assert workers["other-h100"]["spec"]["template"]["spec"]["nodeSelector"]
    assert "replicas" not in workers["other-h100"]["spec"], "KEDA sets the number, and an upgrade keeps it"


def test_keda_queries_an_existing_metric_of_the_release() -> None:
    of_keda = {each["kind"]: each for each in OBJECTS if each not in OWN}
    scaled, authentication = of_keda["ScaledObject"], of_keda["TriggerAuthentication"]
    [trigger] = scaled["spec"]["triggers"]
    assert trigger["metadata"]["url"] == "http://other:8000/api/v1/demand?kind=H100&any=true"
    assert trigger["metadata"]["valueLocation"] in Demand.model_fields
    assert scaled["spec"]["scaleTargetRef"]["name"] == "other-h100"
    assert (scaled["spec"]["minReplicaCount"], scaled["spec"]["maxReplicaCount"]) == (0, 16)
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]


def test_values_are_checked() -> None:
    jsonschema.validate(DEFAULTS, SCHEMA)
    jsonschema.validate(DEFAULTS | yaml.safe_load(VALUES.read_text()), SCHEMA)
    [worker] = DEFAULTS["workers"]
    for wrong in (
        {"imagge": "x"},
        {"settings": {"STAGETREE_STOP_SECONDS": 120}},
        {"settings": {}},
        {"workers": [worker | {"gpus": 8}]},
        {"workers": [worker | {"name": "A100"}]},
        {"workers": [worker | {"most": 4, "any": True}]},
        {"workers": [worker | {"kind": "H100"}]},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(DEFAULTS | wrong, SCHEMA)
