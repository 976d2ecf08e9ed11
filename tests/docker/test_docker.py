"""docker/ starts the commands that other tests run, with existing settings and valid files."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from celery.bin.worker import worker as celery_worker
from redis import Redis
from stacks import Cluster, accepts_connections, redis_server, wait_for
from uvicorn.main import main as uvicorn_main

from app.cli.commands import app as cli
from app.domain.slots import NAME
from app.events.database import Database
from app.service.health import check_schema
from app.settings import Settings
from app.storage.object_store import open_store
from app.workers.celery_app import celery
from app.workers.prefork import serve_api, serve_queue, worker_options

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "docker" / "Dockerfile"
COMPOSE = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
ACL = (ROOT / "docker" / "redis.acl").read_text()
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
BIN = Path(sys.executable).parent

Command = list[str]


def stages() -> dict[str, list[str]]:
    """The instructions of each target of the Dockerfile."""
    found: dict[str, list[str]] = {}
    text = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text())
    for line in text[text.index("FROM ") :].splitlines():
        if line.startswith("FROM "):
            target = line.rsplit(" ", 1)[-1]
            found[target] = []
        elif line and not line.startswith("#"):
            found[target].append(line)
    return found


def json_after(instructions: list[str], word: str) -> Command:
    """The command in the exec form of CMD or HEALTHCHECK."""
    line = next(line for line in instructions if line.startswith(word))
    return list(json.loads(line[line.index("[") :]))


def docker_commands() -> dict[str, Command]:
    """Every command of Dockerfile and compose.yaml that starts one of our processes."""
    ours = {
        name: service["command"] for name, service in SERVICES.items() if "build" in service and "command" in service
    }
    images = {target: json_after(stages()[target], "CMD") for target in ("api", "worker")}
    return ours | {f"image {target}": command for target, command in images.items()}


def arguments(command: Command) -> dict[str, Any]:
    """The options of a command of ours as Celery or uvicorn reads them, without options that must differ."""
    words = command[command.index("-m") + 1 :] if command[0] == sys.executable else command
    if words[0] == "stagetree":
        return uvicorn_options(words[1:])
    if words[0] == "celery":
        assert words[1:4] == ["-A", "app.workers", "worker"]
        queue = words[words.index("-Q") + 1]
        values = celery_worker.make_context("worker", words[4:], resilient_parsing=True).params
        given = {name: value for name, value in values.items() if value not in (None, False, [], ())}
        assert given.pop("hostname", f"{queue}@%h").startswith(queue)
        return {**given, "queues": "a slot" if NAME.fullmatch(queue) else queue}
    values = uvicorn_main.make_context("uvicorn", words[1:], resilient_parsing=True).params
    assert not any(values[name] for name in ("workers", "reload", "fd", "uds"))
    return {name: values[name] for name in ("app", "factory", "proxy_headers")}


def uvicorn_options(words: Command) -> dict[str, Any]:
    """The words of `stagetree api` as uvicorn reads them."""
    given: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uvicorn.run", lambda app, **options: given.update(app=app, **options))
        cli(words, standalone_mode=False)
    return {name: value for name, value in given.items() if name not in ("host", "port")}


def test_our_processes_are_started_as_in_the_tests(cluster: Cluster) -> None:
    run_elsewhere = [arguments(command) for name, command in cluster.commands.items() if name != "redis"]
    started = {name: command for name, command in docker_commands().items() if command[0] in ("celery", "stagetree")}
    assert len(started) == 5
    for name, command in started.items():
        assert arguments(command) in run_elsewhere, name


@pytest.mark.parametrize(("queue", "service"), [("gpu0", "worker-gpu0"), ("scheduler", "scheduler")])
def test_the_embedded_stack_starts_the_same_workers(monkeypatch: pytest.MonkeyPatch, queue: str, service: str) -> None:
    started: dict[str, Any] = {}

    class Noting:
        exitcode = 0

        def __init__(self, **options: Any) -> None:
            started.update(options)

        def start(self) -> None: ...

    monkeypatch.setattr(celery, "Worker", Noting)
    with pytest.raises(SystemExit):
        serve_queue(queue, **worker_options(queue))
    in_docker = arguments(docker_commands()[service]) | {"queues": [queue]}
    assert in_docker.pop("optimization") == "default"
    assert in_docker.items() <= started.items()
    assert started["beat"] == ("-B" in docker_commands()[service])


def test_the_embedded_stack_starts_the_same_api(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr("uvicorn.run", lambda app, **options: given.update(app=app, **options))
    serve_api("127.0.0.1", 1)
    assert given == uvicorn_options(["api"]) | {"access_log": False, "host": "127.0.0.1", "port": 1}


def test_every_queue_is_a_slot_or_the_scheduler() -> None:
    for name, command in docker_commands().items():
        if command[0] == "celery":
            queue = command[command.index("-Q") + 1]
            assert queue == "scheduler" or NAME.fullmatch(queue), name


def test_every_setting_exists() -> None:
    known = {f"STAGETREE_{field.upper()}" for field in Settings.model_fields}
    text = DOCKERFILE.read_text() + (ROOT / "docker" / "compose.yaml").read_text()
    assert set(re.findall(r"STAGETREE_\w+", text)) <= known


@pytest.mark.parametrize("process", ["x-api", "x-scheduler", "x-slot"])
def test_the_settings_are_accepted(monkeypatch: pytest.MonkeyPatch, process: str) -> None:
    for name, value in COMPOSE[process].items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert settings.checkpoints.startswith("s3://") and settings.trainer_files == ["/trainers/trainer.py"]


def test_the_mounted_trainer_exists() -> None:
    folder, inside, _ = SERVICES["worker-gpu0"]["volumes"][0].split(":")
    assert (ROOT / "docker" / folder / "trainer.py").exists()
    assert COMPOSE["x-settings"]["STAGETREE_TRAINERS"].startswith(inside)


def test_api_and_workers_share_settings_and_trainers() -> None:
    ours = [service for service in SERVICES.values() if "build" in service]
    assert len(ours) == 6
    assert all(COMPOSE["x-settings"].items() <= service["environment"].items() for service in ours)
    assert len({json.dumps(service["volumes"]) for service in ours}) == 1


def test_the_secrets_of_the_store_agree() -> None:
    [identity] = json.loads(COMPOSE["configs"]["s3"]["content"])["identities"]
    settings = COMPOSE["x-settings"]
    assert identity["credentials"] == [
        {"accessKey": settings["AWS_ACCESS_KEY_ID"], "secretKey": settings["AWS_SECRET_ACCESS_KEY"]}
    ]


def test_the_broker_requires_our_processes_passwords() -> None:
    """Every client with write access can have a slot train."""
    users = dict(re.findall(r"^user (\S+) on >(\S+)", ACL, re.MULTILINE))
    assert users.keys() == {"api", "worker"} and "user default off" in ACL
    for process, user in (("x-api", "api"), ("x-scheduler", "worker"), ("x-slot", "worker")):
        assert COMPOSE[process]["STAGETREE_BROKER_URL"] == f"redis://{user}:{users[user]}@redis:6379/0"


def test_each_process_has_the_role_that_it_is_granted() -> None:
    granted = re.findall(r"ALTER ROLE (\w+) LOGIN PASSWORD '(\w+)'", " ".join(SERVICES["grants"]["command"]))
    urls = [COMPOSE[process]["STAGETREE_DATABASE_URL"] for process in ("x-api", "x-scheduler", "x-slot")]
    assert urls == [f"postgresql://{role}:{password}@postgres/stagetree" for role, password in granted]


def test_only_the_api_is_published_and_only_on_this_machine() -> None:
    assert {name: service["ports"] for name, service in SERVICES.items() if "ports" in service} == {
        "api": ["127.0.0.1:8000:8000"]
    }


def test_profiles() -> None:
    profiles = {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service}
    assert profiles == {"worker-cpu0": ["default"], "worker-gpu0": ["gpu"]}


def test_files_that_the_dockerfile_copies_exist_and_are_not_ignored() -> None:
    ignored = (ROOT / "docker" / "Dockerfile.dockerignore").read_text().split()
    for line in stages()["base"]:
        if line.startswith("COPY "):
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists() and f"!{source}" in ignored, source


def test_the_images_install_nothing_without_its_hash() -> None:
    """Except our own package, which is installed without dependencies."""
    calls = [call for line in stages()["base"] for call in re.findall(r"pip install [^&]*", line)]
    ours = "pip install --no-deps --no-build-isolation --editable . "
    assert len(calls) == 4 and [call for call in calls if "--require-hashes" not in call] == [ours]


def test_no_image_runs_as_root() -> None:
    assert stages()["base"][-1] == "USER 10001"


def test_the_dockerfile_passes_its_linter() -> None:
    found = subprocess.run([BIN / "hadolint", DOCKERFILE], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")


def test_compose_is_valid_by_its_schema() -> None:
    check = [BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", ROOT / "docker" / "compose.yaml"]
    found = subprocess.run(check, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


ONLY_ITS_OWN = ("profiles", "hostname", "command", "deploy")


@pytest.mark.parametrize(("slot", "settings"), [("gpu1", {}), ("gpu0a", {"STAGETREE_SLOTS_PER_GPU": "2"})])
def test_the_commented_workers_are_like_the_others(slot: str, settings: dict[str, str]) -> None:
    text = (ROOT / "docker" / "compose.yaml").read_text()
    commented = "\n".join(re.findall(r"^  # (  .*|worker-gpu\w+:)$", text, re.MULTILINE))
    worker = yaml.safe_load(commented.replace("<<: *", "of: "))[f"worker-{slot}"]
    environment = {name: value for name, value in worker.pop("environment", {}).items() if name != "of"}
    assert environment == settings
    wanted = json.dumps({name: SERVICES["worker-gpu0"][name] for name in ("image", *ONLY_ITS_OWN)})
    assert {name: worker[name] for name in worker if name != "of"} == json.loads(wanted.replace("gpu0", slot))


@pytest.mark.slow
def test_the_schema_is_made_by_the_command_in_compose(empty_url: str) -> None:
    command = SERVICES["migrate"]["command"]
    environment = {**os.environ, "STAGETREE_DATABASE_URL": empty_url}
    subprocess.run([BIN / command[0], *command[1:]], check=True, cwd=ROOT, env=environment, capture_output=True)
    database = Database(empty_url)
    check_schema(database)
    database.dispose()


@pytest.mark.slow
def test_the_bucket_is_made_by_the_command_in_compose(bucket: dict[str, str]) -> None:
    command = SERVICES["bucket"]["command"]
    name = "made-by-compose"
    command = [word.replace("'checkpoints'", f"'{name}'") for word in command]
    for _ in range(2):  # it runs at every start
        subprocess.run([sys.executable, *command[1:]], check=True, env={**os.environ, **bucket})
    store = open_store(f"s3://{name}/stagetree")
    store.write("plan/node/1", [memoryview(b"state")])
    assert b"".join(store.read("plan/node/1")) == b"state"


@pytest.fixture
def redis_of_compose() -> Iterator[Redis]:
    """A Redis with the options of compose.yaml, on a socket."""
    folder = Path(tempfile.mkdtemp(prefix="st-redis-"))  # the path of a socket must be short
    options = ["--port", "0", "--unixsocket", f"{folder}/redis.sock", "--dir", str(folder)]
    (folder / "redis.acl").write_text(f"{ACL}user operator on nopass ~* +@all\n")
    command = [word.replace("/etc/redis.acl", str(folder / "redis.acl")) for word in SERVICES["redis"]["command"][1:]]
    process = subprocess.Popen([redis_server(), *command, *options], stdout=subprocess.DEVNULL)
    with Redis(unix_socket_path=f"{folder}/redis.sock", username="operator", password="any") as client:
        wait_for("its start", lambda: accepts_connections(client))
        yield client
    process.terminate()
    process.wait()
    shutil.rmtree(folder)


def test_redis_persists_and_evicts_nothing(redis_of_compose: Redis) -> None:
    wanted = {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction"}
    for name, value in wanted.items():
        assert redis_of_compose.config_get(name) == {name: value}


def test_the_health_check_asks_the_api(cluster: Cluster) -> None:
    check = json_after(stages()["api"], "HEALTHCHECK")

    def ends_with(url: str) -> int:
        command = [word.replace("http://127.0.0.1:8000", url) for word in check]
        return subprocess.run([sys.executable, *command[1:]], capture_output=True, check=False).returncode

    wait_for("an answer within its two seconds", lambda: ends_with(cluster.url) == 0)
    assert ends_with("http://127.0.0.1:9") == 1
