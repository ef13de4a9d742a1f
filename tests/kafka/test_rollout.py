"""`reauth.enforcement: auto` with real clients behind two proxies that share a store.

Time is compressed: a client is ready after two re-authentications, five seconds apart. All programs
check that no record is lost, doubled or reordered; see `sasl_clients`. One proxy is killed, and a
worker of the other one, whose configuration changes all the time; and the store is locked.
"""

import json
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from metrics.readiness.analysis import Analysis, Question
from metrics.readiness.duckdb_engine import DuckEngine
from metrics.readiness.folder import event_files
from metrics.report.libraries import library_of
from sasl.states import Enforcement
from tests.support.kafka import go, java, packages
from tests.support.kafka.clients import User, password_of, user
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.sasl_clients import Confluent, run_program
from tests.support.kafka.sasl_differential.transcript import Actor
from tests.support.kafka.sessions import PARTITIONS, Records, run_python
from tests.support.kafka.wire_client import WireClient
from tests.support.proxy_process import ProxyProcess, gateway_config
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SCRAM = "SCRAM-SHA-256"
LIFETIME_MS = 15_000
AUTO = {
    "reauthentications": 2,
    "window.ms": 5_000,
    "kill.window.ms": 60_000,
    "promotions.per.hour": 100,
}
CAPABLE = ("librdkafka", "java-new", "franz", "sarama", "python", "kafkajs")
OLD = ("java-old", "sarama-raw", "python-old", "aiokafka")
LOGINS = 2
"""Logins of each of them: a producer, a transactional one, and a group."""
JAVA = {"java-new": "4.1.0", "java-old": "2.1.1"}
PROGRAMS: dict[str, Callable[[], list[str]]] = {
    "franz": lambda: [str(go.program("franz"))],
    "sarama": lambda: [str(go.program("sarama"))],
    "sarama-raw": lambda: [str(go.program("sarama"))],
    "kafkajs": packages.kafkajs,
    "python": lambda: [sys.executable, "-m", "tests.support.kafka.sessions", "kafka-python"],
    "python-old": partial(packages.python, "kafka-python", "2.3.3"),
    "aiokafka": partial(packages.python, "aiokafka", "0.14.0"),
}
AT = (("librdkafka", "java-new"), ("librdkafka", "java-old", *PROGRAMS))
"""Clients of each proxy. The first is killed as a whole: other libraries may give up before it is
back."""
GIVES_UP = "kafkajs"
"""Starts when nothing is killed any more."""
TURNING = "turning"
PATIENCE = 300.0
RELOADS = 100


@dataclass(frozen=True, slots=True)
class Who:
    """The parts of a `Login` that librdkafka needs."""

    name: str
    user: User


class Clients:
    """All clients at work behind the proxies, until a file exists."""

    def __init__(self, proxies: list[ProxyProcess], issuer: Issuer, directory: Path) -> None:
        self.until = directory / "end"
        self.turns_bad = threading.Event()
        self._bad: Future[None] | None = None
        self._issuer, self._directory = issuer, directory
        self.pool = ThreadPoolExecutor(32)
        self._running: list[Future[Records]] = []
        self._proxies = proxies
        for number, names in enumerate(AT):
            for name in names:
                if name != GIVES_UP:
                    self.add(name, number)

    def add(self, name: str, number: int) -> None:
        """Start a client of one of the proxies."""
        bootstrap = str(self._proxies[number].addresses()["AUTO"])
        run = partial(self._run, name, topics_of(name, number), bootstrap)
        self._running.append(self.pool.submit(run))

    def add_turning(self, proxy: ProxyProcess) -> None:
        """Add a client that turns bad later; it does not survive the end of a process."""
        self._bad = self.pool.submit(self._turning, proxy)

    def check(self) -> None:
        """Raise the failure of a client that has ended too early."""
        for each in self._running:
            if each.done():
                each.result()

    def stop(self) -> list[Records]:
        self.until.touch()
        if self._bad is not None:
            self._bad.result()
        return [each.result() for each in self._running]

    def _run(self, name: str, topics: list[str], bootstrap: str) -> Records:
        """Run a client as the user `name`, once for each topic, which it has to itself."""
        own = user(self._issuer, SCRAM, name)
        if name == "librdkafka":
            logins = [Who(topic, own) for topic in topics]
            return run_python(Confluent, bootstrap, logins, self.until, self._directory)
        if name in JAVA:
            path = f"{java.compiled('Sessions')}:{java.client_class_path(JAVA[name])}"
            files = []
            for topic in topics:
                directory = self._directory / topic
                directory.mkdir()
                files.append(str(own.java(directory, client_id=topic).properties))
            command = ["java", *java.FAST_START, "-Xmx128m", "-cp", path, "Sessions"]
            return run_program([*command, bootstrap, str(self.until), *files])
        login: dict[str, Any] = {"Mechanism": SCRAM, "User": name, "Password": password_of(name)}
        login["IsRaw"] = name == "sarama-raw"
        settings = self._directory / f"{topics[0]}.json"
        settings.write_text(json.dumps([login | {"Name": topic} for topic in topics]))
        return run_program([*PROGRAMS[name](), bootstrap, str(self.until), str(settings)])

    def _turning(self, proxy: ProxyProcess) -> None:
        """Re-authenticate in time; from some time on use the session past its end."""
        with WireClient(proxy.addresses()["AUTO"]) as client:
            actor = Actor(client, self._issuer)
            while not self.until.exists():
                actor.oauth(self._issuer.mint(TURNING))
                if self.turns_bad.wait(LIFETIME_MS / 1000 * 0.8):
                    time.sleep(1.0)  # sooner it is refused
                    actor.oauth(self._issuer.mint(TURNING))  # from now on it is enforced
                    break
            time.sleep(LIFETIME_MS / 1000 + 1)  # meanwhile all others renew enforced sessions
            actor.metadata()


def stages(proxy: ProxyProcess) -> dict[str, str]:
    found = json.loads(proxy.command("rollout", "status", "--output", "json"))
    return {each["principal"].removeprefix("User:"): each["stage"] for each in found}


def test_capable_clients_are_enforced_and_no_other_is_killed(
    kafka: KafkaCluster, jwks: Path, issuer: Issuer, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        proxies = []
        for number in range(2):
            config = gateway_config(str(kafka.address()), jwks, listeners={"AUTO": LIFETIME_MS})
            config["listeners"][0]["reauth.enforcement"] = str(Enforcement.AUTO)
            config |= {"auto": AUTO, "workers": 2, "store": {"url": f"sqlite:{tmp_path}/state.db"}}
            directory = tmp_path / str(number)
            directory.mkdir()
            proxies.append(stack.enter_context(ProxyProcess(config, directory)))
        for name in (*CAPABLE, *OLD):
            proxies[0].add_user(name, password_of(name), SCRAM)
        for number, names in enumerate(AT):
            for topic in chain.from_iterable(topics_of(name, number) for name in names):
                kafka.create_topic(topic, partitions=PARTITIONS)
        proxies[1].until_known()
        clients = Clients(proxies, issuer, tmp_path)
        stack.callback(clients.until.touch)
        enforced = dict.fromkeys((*CAPABLE, TURNING), "enforced")

        def settled() -> bool:
            clients.check()
            return stages(proxies[0]) == enforced | dict.fromkeys(OLD, "seen")

        reloading = clients.pool.submit(reload_often, proxies[1])
        time.sleep(LIFETIME_MS / 1000)
        os.kill(proxies[1].children()[0], signal.SIGKILL)  # a worker
        with closing(sqlite3.connect(tmp_path / "state.db")) as store:
            store.execute("BEGIN EXCLUSIVE")
            proxies[1].until_logged("auto: nothing is decided")
        for pid in (*proxies[0].children(), proxies[0].pid):
            os.kill(pid, signal.SIGKILL)
        proxies[0].wait()
        proxies[0].start()
        clients.add(GIVES_UP, 1)
        clients.add_turning(proxies[0])
        began = time.monotonic()
        wait_until(settled, PATIENCE, what="not settled", details=lambda: str(stages(proxies[0])))
        settled_in = time.monotonic() - began
        clients.turns_bad.set()
        wait_until(lambda: stages(proxies[0])[TURNING] == "demoted", PATIENCE, what="not demoted")
        reloaded_ms = reloading.result()
        written = clients.stop()
        assert stages(proxies[0]) == stages(proxies[1])
    events = [each for proxy in proxies for each in proxy.events()]
    assert_right(events, written, settled_in)
    later = [each for each in proxies[1].events() if each["timestamp_ms"] > reloaded_ms]
    lifetimes = [each["session_lifetime_ms"] for each in later if each["kind"] == "reauthenticated"]
    assert set(lifetimes) == {LIFETIME_MS}, "workers have different settings"
    assert_reported(tmp_path, events)


def topics_of(name: str, number: int) -> list[str]:
    """Return the topics of a client at one of the proxies, one for each login."""
    return [f"{name}-{number}-{login}" for login in range(LOGINS)]


def reload_often(proxy: ProxyProcess) -> int:
    """Change the lifetime a hundred times in a minute; return when the last change applied.

    Changes that are made during a reload are applied together after it.
    """
    began = time.monotonic()
    for number in range(RELOADS):
        lifetime_ms = LIFETIME_MS - 1_000 * (number % 2 == 0)
        proxy.config["listeners"][0]["connections.max.reauth.ms"] = lifetime_ms
        if number == RELOADS - 1:
            proxy.config["max.connections.per.ip"] = 1_000
        new = proxy.config_file.with_name("new.yaml")
        new.write_text(json.dumps(proxy.config))
        new.replace(proxy.config_file)
        proxy.signal(signal.SIGHUP)
        time.sleep(max(0.0, began + (number + 1) * 60 / RELOADS - time.monotonic()))
    proxy.until_logged("reloaded: max.connections.per.ip")
    return round(time.time() * 1000) + 5_000  # until all workers have applied it


def assert_right(events: list[dict[str, Any]], written: list[Records], settled_in: float) -> None:
    killed = [each for each in events if each["kind"] == "expired-killed"]
    assert {each["principal"] for each in killed} == {f"User:{TURNING}"}
    demoted = [each for each in events if each["kind"] == "demoted"]
    assert {each["principal"] for each in demoted} == {f"User:{TURNING}"}
    took_ms = demoted[0]["timestamp_ms"] - killed[0]["timestamp_ms"]
    assert took_ms < 10_000
    promoted = {each["principal"] for each in events if each["kind"] == "promoted"}
    assert promoted == {f"User:{name}" for name in (*CAPABLE, TURNING)}
    renewed = [each for each in events if each["kind"] == "reauthenticated"]
    enforced = [each for each in renewed if each["enforcement"] == "enforce"]
    assert {each["principal"] for each in enforced} >= {f"User:{name}" for name in CAPABLE}
    connections = {each["connection_id"] for each in events if each["kind"] == "authenticated"}
    late = {each["principal"] for each in events if each["kind"] == "would-be-killed"}
    print(  # noqa: T201 - figures of the run
        f"{len(connections)} connections, {len(renewed)} re-authentications, {len(enforced)}"
        f" enforced, {sum(sum(map(sum, each.values())) for each in written)} records, settled in"
        f" {settled_in:.0f} s, demoted after {took_ms} ms, late in probe: {sorted(late)}"
    )


def assert_reported(directory: Path, events: list[dict[str, Any]]) -> None:
    """The readiness report of both proxies gives each client the verdict that it deserves."""
    with DuckEngine() as engine:
        engine.read(event_files(str(directory)))
        analysis = Analysis(engine, engine, Question(as_of_ms=2**46), lambda _: None)
        analysis.run()
    late = {one["principal"] for one in events if one["kind"] == "would-be-killed"}
    deserved = dict.fromkeys(OLD, "not_capable") | dict.fromkeys(("aiokafka", TURNING), "failing")
    # a busy machine may keep a client from renewing in time
    deserved |= {name: "ready" for name in CAPABLE if f"User:{name}" not in late}
    found = {row["principal"].removeprefix("User:"): row for row in analysis.rows["principals"]}
    assert {name: found[name]["verdict"] for name in deserved} == deserved
    recognized = {library_of(row["client_software_name"]) for row in analysis.rows["clients"]}
    assert len(recognized - {None}) >= 3
