"""The service in real processes, for tests: `stack`, the embedded one, and `cluster`, started by hand as users do.

Both run as long as the session. A test keeps apart from the others by a `tag` among its trainer's arguments: another
plan, of which no study has trained anything.

With `--dist loadgroup`, one worker of pytest-xdist runs all files that use them, so that each starts once; the other
files are spread as with `loadfile`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import psutil
import pytest
from celery import Celery
from proxies import Proxy, start_proxy
from redis import Redis, RedisError
from sqlalchemy import make_url

from app.embedded.machine import redis_server, reserve
from app.embedded.stack import Embedded
from app.events.database import Database
from app.events.sql_log import SqlRecords
from stagetree.client import Client, Unreachable
from stagetree.runtime.warm import launch

ROOT = Path(__file__).parents[1]
NAMES = ("trainers.py", "typed.py", "unimportable.py", "walker.py", "granted.py")
TOYS = [str(ROOT / "tests" / "e2e" / name) for name in NAMES]
EXAMPLES = ("digits/trainer.py", "charlm/trainer.py", "script/train.py")
TRAINERS = [*TOYS, *(str(ROOT / "examples" / name) for name in EXAMPLES)]
PATIENCE = 300.0
LEASE_SECONDS = 4.0
Json = dict[str, Any]
SERVED = "served"
"""The group of files whose tests use the stack or the cluster."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadGroupScheduling

    class FilesAndGroups(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return super()._split_scope(nodeid).partition("::")[0]

    return FilesAndGroups(config, log) if config.getoption("dist") == "loadgroup" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put whole files into the group: some have a fixture for the module that needs the stack."""
    needed = {"stack", "cluster_url"}
    served = {item.path for item in items if needed & {*getattr(item, "fixturenames", ())}}
    for item in items:
        if item.path in served:
            item.add_marker(pytest.mark.xdist_group(SERVED))


def wait_for(what: str, look: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """The first true answer of `look`, which is called less often the longer that takes."""
    begun = time.monotonic()
    while (waited := time.monotonic() - begun) < seconds:
        if found := look():
            return found
        time.sleep(min(max(waited / 20, 0.02), 0.1))
    raise AssertionError(f"{what} did not happen within {seconds:.0f} s")


def accepts_connections(redis: Redis) -> bool:
    """Whether clients can connect: the socket exists a moment earlier."""
    try:
        return bool(redis.ping())
    except RedisError:
        return False


@dataclass
class Service:
    """A running service: its client, and shortcuts for tests."""

    client: Client

    @property
    def url(self) -> str:
        return self.client.url

    def submit(self, spec: Json) -> str:
        return str(self.client.submit(spec)["study"])

    def run(self, spec: Json) -> Json:
        return self.wait(self.submit(spec))

    def wait(self, study: str, seconds: float = PATIENCE) -> Json:
        """The study with its trials, when it is over."""

        def has_ended() -> bool:
            return self.client.study(study, trials=False)["state"] in ("completed", "failed", "cancelled")

        wait_for(f"the end of {study}", has_ended, seconds)
        return self.client.study(study)

    def wait_for_step(self, study: str, step: int) -> None:
        """Until a model of the study was evaluated after this step, or a later one."""

        def look() -> bool:
            return any(fact["step"] >= step for fact in self.facts(study, "Evaluated"))

        wait_for(f"step {step} of {study}", look)

    def wait_for_event(self, study: str, kind: str, **data: Any) -> Json:
        """The first event of the study of this kind and with this data."""

        def look() -> Json | None:
            found = (event for event in self.client.events(study) if event["type"] == kind)
            return next((event for event in found if data.items() <= event["data"].items()), None)

        return dict(wait_for(f"{kind} in {study}", look))

    def facts(self, study: str, kind: str) -> list[Json]:
        """The data of the events of this kind."""
        return [event["data"] for event in self.client.events(study) if event["type"] == kind]

    def running(self, study: str) -> list[Json]:
        return list(self.client.study(study, trials=False)["progress"]["running"])


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """For all tests of a session."""
    with running_service(tmp_path_factory.mktemp("stack")) as service:
        yield service


@contextmanager
def running_service(folder: Path) -> Iterator[Service]:
    """The embedded stack with two slots, the toy trainers and the trainers of the examples."""
    embedded = Embedded(folder, 2, TRAINERS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STAGETREE_INTERMEDIATE_OVERHEAD", "1")  # the toy's steps are shorter than writing a file
        embedded.start(await_slots=True)  # importing torch is not a part of any study
    with Client(embedded.url) as client:
        yield Service(client)
    embedded.stop()


# ----------------------------------------------------------------------------------------------------------- a cluster


@dataclass
class Cluster(Service):
    """Redis on a port, PostgreSQL, S3, the API, two slots and a scheduler; each can be killed and started again.

    networks: for each process, the proxies before the "database", the "broker" and the "store".
    """

    folder: Path
    database: Database
    settings: dict[str, str]
    commands: dict[str, list[str]]
    networks: dict[str, dict[str, Proxy]]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, *names: str, **settings: str) -> None:
        """Start processes, all if none is named, and return when they are ready."""
        names = names or tuple(self.commands)
        for name in names:
            self.spawn(name, **settings)
        for name in names:
            if "gpu" in name:
                wait_for(f"the start of {name}", lambda name=name: self.is_ready(name))
            elif name == "api":
                wait_for("the start of the API", self.is_serving)

    def spawn(self, name: str, **settings: str) -> None:
        """Start a process without waiting until it is ready."""
        disk = {"STAGETREE_LOGS": str(self.folder / f"disk-of-{name}")}
        environment = {**os.environ, **self.settings, **disk, **self.addresses(name), **settings}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                self.commands[name],
                env=environment,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )

    def addresses(self, name: str) -> dict[str, str]:
        """Where a process finds the servers: each behind a proxy of its own."""
        proxies = self.networks.get(name)
        if proxies is None:
            return {}
        database = make_url(self.settings["STAGETREE_DATABASE_URL"]).difference_update_query(["host"])
        through = database.set(host="127.0.0.1", port=proxies["database"].port)
        return {
            "STAGETREE_DATABASE_URL": through.render_as_string(hide_password=False),
            "STAGETREE_BROKER_URL": f"redis://127.0.0.1:{proxies['broker'].port}/0",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxies['store'].port}",
        }

    def proxies(self, server: str) -> list[Proxy]:
        """The proxies before one kind of server, of all processes."""
        return [proxies[server] for proxies in self.networks.values()]

    @contextmanager
    def fault(self, server: str, kind: str, *names: str) -> Iterator[None]:
        """Cause a fault of a server, for these processes or all of them; the end of the block heals it."""
        proxies = [self.networks[name][server] for name in names or self.networks]
        for proxy in proxies:
            getattr(proxy, kind)()
        try:
            yield
        finally:
            for proxy in proxies:
                proxy.heal()

    def is_ready(self, slot: str, by: str = "") -> bool:
        """Whether the slot was registered by the worker that was started last. by: its name, if not the slot's."""
        worker = by or slot
        assert self.processes[worker].poll() is None, f"{worker} ended: {self.log(worker)}"
        with SqlRecords(self.database).read() as rows:
            return any(row.name == slot and row.pid == self.child(worker) for row in rows.slots.all())

    def is_serving(self) -> bool:
        """Whether the API answers."""
        assert self.processes["api"].poll() is None, f"the API ended: {self.log('api')}"
        try:
            self.client.health()
        except Unreachable:
            return False
        return True

    def child(self, name: str) -> int | None:
        """The process that trains, a child of the worker's main process; None while there is none."""
        try:
            children = psutil.Process(self.processes[name].pid).children()
        except psutil.NoSuchProcess:
            return None
        return children[0].pid if children else None

    def signal_child(self, name: str, number: int) -> int:
        """Send a signal to the training process, as soon as there is one, and return its id."""
        pid = int(wait_for(f"the child of {name}", lambda: self.child(name)))
        os.kill(pid, number)
        return pid

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a started process, and wait for its end."""
        os.kill(self.processes[name].pid, number)
        self.processes[name].wait(PATIENCE)

    def restart(self, *names: str, **settings: str) -> None:
        """Start processes again. Kill the ones that still run."""
        for name in names:
            if self.processes[name].poll() is None:
                self.kill(name)
        self.start(*names, **settings)

    def broker(self) -> Redis:
        return Redis.from_url(self.settings["STAGETREE_BROKER_URL"])

    def wake_scheduler(self) -> None:
        """Request a tick, like writers of the log."""
        with Celery(broker=self.settings["STAGETREE_BROKER_URL"], set_as_current=False) as sender:
            sender.conf.broker_transport_options = {"global_keyprefix": "stagetree:"}
            sender.send_task("stagetree.tick", queue="scheduler")

    def stop(self) -> None:
        """End every process, the broker last."""
        own = self.processes.keys()
        for names in (own - {"redis"}, own & {"redis"}):
            for name in names:
                self.processes[name].terminate()
            for name in names:
                self.processes[name].wait(PATIENCE)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")


@pytest.fixture(scope="session")
def bucket() -> Iterator[dict[str, str]]:
    """An S3 server with a bucket; what the environment must hold to use it."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    environment = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "unknown",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket="checkpoints")
        yield environment
    server.stop()


@pytest.fixture(scope="session")
def cluster(bucket: dict[str, str], cluster_url: str) -> Iterator[Cluster]:
    """What `docker compose up` starts, as plain processes; its checkpoints go through S3."""
    folder = Path(tempfile.mkdtemp(prefix="stagetree-cluster-"))
    (api, kept), (broker, kept_too) = (reserve("127.0.0.1", 0) for _ in range(2))
    with (folder / "warm.log").open("ab") as log:
        interpreter, its_life = launch(str(folder / "warm"), log)
    settings = {
        **bucket,
        "STAGETREE_DATABASE_URL": cluster_url,
        "STAGETREE_BROKER_URL": f"redis://127.0.0.1:{broker}/0",
        "STAGETREE_CHECKPOINTS": "s3://checkpoints/tests",
        "STAGETREE_TRAINERS": ",".join(TRAINERS),
        "STAGETREE_LEASE_SECONDS": str(LEASE_SECONDS),
        "STAGETREE_MEMORY_BYTES": "0",  # each read of a checkpoint uses the network
        "STAGETREE_ALLOW_CPU": "1",
        "STAGETREE_STOP_SECONDS": "8",
        "STAGETREE_LOCKS": str(folder / "locks"),
        "STAGETREE_WARM": str(folder / "warm"),  # a restarted slot need not import torch again
        "PYTHONPATH": str(ROOT),
    }
    quiet = ["--without-gossip", "--without-mingle"]
    celery = [sys.executable, "-m", "celery", "-A", "app.workers", "worker", "-l", "INFO", *quiet]
    serve = [sys.executable, "-P", "-m", "stagetree", "api"]
    commands = {
        "redis": [redis_server(), "--port", str(broker), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"],
        "api": [*serve, "--port", str(api)],
        "gpu0": [*celery, "-Q", "gpu0", "-c", "1", "-n", "gpu0@%h"],
        "gpu1": [*celery, "-Q", "gpu1", "-c", "1", "-n", "gpu1@%h"],
        "scheduler": [*celery, "-Q", "scheduler", "-c", "1", "-B", "-n", "scheduler@%h"],
    }
    database = Database(cluster_url)
    networks = {name: networks_of(cluster_url, broker, bucket) for name in ("api", "gpu0", "gpu1", "scheduler")}
    with Client(f"http://127.0.0.1:{api}") as client, kept, kept_too:
        running = Cluster(client, folder, database, settings, commands, networks)
        try:
            running.start()
            yield running
        finally:
            running.stop()
            its_life.close()
            interpreter.wait(PATIENCE)
            for proxy in (proxy for proxies in networks.values() for proxy in proxies.values()):
                proxy.close()
    database.dispose()
    shutil.rmtree(folder)


def networks_of(database_url: str, broker: int, bucket: dict[str, str]) -> dict[str, Proxy]:
    """A proxy before each server."""
    host, _, port = bucket["AWS_ENDPOINT_URL"].removeprefix("http://").partition(":")
    return {
        "database": start_proxy(database_url)[0],
        "broker": Proxy(("127.0.0.1", broker)),
        "store": Proxy((host, int(port))),
    }
