"""The faults of a round: in processes of a cluster, its servers, and the connections between them.

Each takes the round's random generator, lasts some seconds, and returns its description. All processes run afterwards.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from random import Random

import boto3
import psutil
from sqlalchemy import text
from stacks import Cluster, wait_for

from app.events.sql_log import SqlLog
from app.events.tables import metadata

Fault = Callable[[Cluster, Random], str]
LONGEST = 9.0
"""Seconds of a fault: more than two of the cluster's leases."""

BAD_ANSWERS = {
    "503": b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    "500": b"HTTP/1.1 500 Internal Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
}


def _slot(chance: Random) -> str:
    return chance.choice(("gpu0", "gpu1"))


def worker(cluster: Cluster, chance: Random) -> str:
    """A worker is killed, or asked to end, and comes back."""
    slot, number = _slot(chance), chance.choice((signal.SIGKILL, signal.SIGTERM))
    cluster.kill(slot, number)
    time.sleep(chance.random() * 3)
    cluster.start(slot)
    return f"{slot} got {number.name}"


def fork(cluster: Cluster, chance: Random) -> str:
    """The process that runs a worker's tasks is killed."""
    slot = _slot(chance)
    cluster.signal_child(slot, signal.SIGKILL)
    return f"the fork of {slot} was killed"


def trainer(cluster: Cluster, chance: Random) -> str:
    """The process that trains is killed, if there is one now."""
    slot = _slot(chance)
    with suppress(psutil.NoSuchProcess):
        inside = psutil.Process(cluster.processes[slot].pid).children(recursive=True)
        if len(inside) > 1:
            inside[-1].kill()
    return f"the trainer of {slot} was killed"


def freezing(cluster: Cluster, chance: Random) -> str:
    """A worker, or the scheduler, stands still with all that is below it."""
    name, seconds = chance.choice(("gpu0", "gpu1", "scheduler")), chance.random() * LONGEST
    with frozen(cluster, name):
        time.sleep(seconds)
    return f"{name} stood still for {seconds:.1f} s"


@contextmanager
def frozen(cluster: Cluster, name: str) -> Iterator[None]:
    root = psutil.Process(cluster.processes[name].pid)
    family = [root, *root.children(recursive=True)]
    send(family, signal.SIGSTOP)
    try:
        yield
    finally:
        send(family, signal.SIGCONT)


def send(family: list[psutil.Process], number: int) -> None:
    for each in family:
        with suppress(psutil.NoSuchProcess):
            each.send_signal(number)


def scheduler(cluster: Cluster, chance: Random) -> str:
    cluster.kill("scheduler", chance.choice((signal.SIGKILL, signal.SIGTERM)))
    cluster.start("scheduler")
    return "another scheduler"


def broker(cluster: Cluster, chance: Random) -> str:
    """It forgets everything, at once or by a kill; or it gets messages that are not valid."""
    match chance.randrange(3):
        case 0:
            with cluster.broker() as redis:
                redis.flushall()
        case 1:
            cluster.kill("redis")
            time.sleep(chance.random() * 3)
            cluster.start("redis")
        case _:
            with cluster.broker() as redis:
                redis.lpush(f"stagetree:{_slot(chance)}", chance.randbytes(40))
    return "the broker forgot, or lied"


def network(cluster: Cluster, chance: Random) -> str:
    """A server is unavailable to some of its clients, in one of the ways of networks."""
    server, kind = chance.choice(("database", "broker", "store")), chance.choice(("refuse", "freeze"))
    names = chance.sample(sorted(cluster.networks), chance.randint(1, len(cluster.networks)))
    seconds = chance.random() * LONGEST
    with cluster.fault(server, kind, *names):
        time.sleep(seconds)
    return f"{server}: {kind} for {seconds:.1f} s to {', '.join(names)}"


def connections(cluster: Cluster, chance: Random) -> str:
    """Open connections break, with or without a notice."""
    server, kind = chance.choice(("database", "broker", "store")), chance.choice(("forget", "reset"))
    for proxy in cluster.proxies(server):
        getattr(proxy, kind)()
    return f"{server}: {kind}"


def checkpoint(cluster: Cluster, chance: Random) -> str:
    """One that is kept is deleted or damaged."""
    store = boto3.client("s3")
    found = store.list_objects_v2(Bucket="checkpoints").get("Contents", [])
    kept = sorted(each["Key"] for each in found if each["Key"].endswith(".safetensors"))
    if kept and chance.random() < 0.5:
        store.delete_object(Bucket="checkpoints", Key=chance.choice(kept[-8:]))
    elif kept:
        store.put_object(Bucket="checkpoints", Key=chance.choice(kept[-8:]), Body=b"x" * 100)
    return "a checkpoint was deleted or damaged"


@contextmanager
def second_process(cluster: Cluster, name: str, number: int) -> Iterator[str]:
    """A second process like this one, on another machine as far as locks go. It gets that signal in the end."""
    other = f"second-{name}"
    command = cluster.commands[name]
    cluster.commands[other] = [*command[:-1], f"second-{command[-1]}"]
    try:
        cluster.spawn(other, STAGETREE_LOCKS=str(cluster.folder / "other-locks"))
        yield other
    finally:
        del cluster.commands[other]
        if cluster.processes[other].poll() is None:
            cluster.kill(other, number)


def second_scheduler(cluster: Cluster, chance: Random) -> str:
    """Another one beside the first, for a while; then it ends, or is killed."""
    number, seconds = chance.choice((signal.SIGKILL, signal.SIGTERM)), chance.random() * LONGEST
    with second_process(cluster, "scheduler", number):
        time.sleep(seconds)
    return f"two schedulers for {seconds:.1f} s, and then {number.name}"


def second_worker(cluster: Cluster, chance: Random) -> str:
    """A worker of a slot that another one has: it ends by itself, unless the first is not heard for long enough."""
    slot = _slot(chance)
    with second_process(cluster, slot, signal.SIGTERM) as other:
        process = cluster.processes[other]
        wait_for("a decision", lambda: process.poll() is not None or cluster.is_ready(slot, by=other))
    begin_again(cluster, slot)
    return f"another worker was started as {slot}"


def stolen_slot(cluster: Cluster, chance: Random) -> str:
    """Another machine's worker takes the slot of one that stands still, and does not give it back at once."""
    slot, seconds = _slot(chance), chance.random() * LONGEST
    with ExitStack() as second:
        with frozen(cluster, slot):
            other = second.enter_context(second_process(cluster, slot, signal.SIGTERM))
            wait_for("a stolen slot", lambda: cluster.is_ready(slot, by=other))
        time.sleep(seconds)
    begin_again(cluster, slot)
    return f"{slot} was another worker's for {seconds:.1f} s"


def begin_again(cluster: Cluster, slot: str) -> None:
    """As its supervisor does where a worker has lost its slot."""
    if cluster.processes[slot].poll() is None:
        cluster.kill(slot, signal.SIGTERM)
    cluster.start(slot)


def store(cluster: Cluster, chance: Random) -> str:
    """It answers with errors, or its answers are cut off."""
    how, seconds = chance.choice((*BAD_ANSWERS, "truncated")), chance.random() * LONGEST
    for proxy in cluster.proxies("store"):
        proxy.truncate(300) if how == "truncated" else proxy.answer(BAD_ANSWERS[how])
    time.sleep(seconds)
    for proxy in cluster.proxies("store"):
        proxy.heal()
    return f"store: {how} for {seconds:.1f} s"


def messages(cluster: Cluster, chance: Random) -> str:
    """Waiting messages are delivered in another order, or twice."""
    with cluster.broker() as redis:
        for queue in ("stagetree:gpu0", "stagetree:gpu1", "stagetree:scheduler"):
            waiting = redis.lrange(queue, 0, -1)
            for each in chance.sample(waiting, len(waiting)):
                redis.lpush(queue, each)
    return "messages came twice, in another order"


def read_only(cluster: Cluster, chance: Random) -> str:
    """The database takes no writes, as a primary that was demoted."""
    seconds, name = chance.random() * LONGEST, cluster.database.engine.url.database
    change = f'ALTER DATABASE "{name}" SET default_transaction_read_only'
    for value, pause in (("on", seconds), ("off", 0.0)):
        execute(cluster, "SET TRANSACTION READ WRITE", f"{change} = {value}")
        execute(cluster, END_CONNECTIONS)
        time.sleep(pause)
    return f"the database was read-only for {seconds:.1f} s"


def lost_commits(cluster: Cluster, chance: Random) -> str:
    """The database fails over to a replica that lacks the commits of the last seconds."""
    seconds, names = chance.random() * 3, [table.name for table in metadata.sorted_tables]
    execute(
        cluster,
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "DROP SCHEMA IF EXISTS replica CASCADE",
        "CREATE SCHEMA replica",
        *(f"CREATE TABLE replica.{name} AS TABLE public.{name}" for name in names),
    )
    head = SqlLog(cluster.database).head()
    time.sleep(seconds)
    lost = SqlLog(cluster.database).head() - head
    execute(
        cluster,
        END_CONNECTIONS,
        f"TRUNCATE {', '.join(f'public.{name}' for name in names)}",
        *(f"INSERT INTO public.{name} SELECT * FROM replica.{name}" for name in names),
        "DROP SCHEMA replica CASCADE",
        END_CONNECTIONS,
    )
    return f"the commits of {seconds:.1f} s were lost, and {lost} events with them"


END_CONNECTIONS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


def execute(cluster: Cluster, *statements: str) -> None:
    """In one transaction."""
    with cluster.database.engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


BREAKS_BACKUPS: tuple[Fault, ...] = (read_only, lost_commits)
"""A backup ends with a sentence, and is to be made again: it can write nothing, or its connections are closed."""

FAULTS: tuple[Fault, ...] = (
    worker,
    fork,
    trainer,
    freezing,
    scheduler,
    broker,
    network,
    connections,
    checkpoint,
    second_scheduler,
    second_worker,
    stolen_slot,
    store,
    messages,
    read_only,
    lost_commits,
)
