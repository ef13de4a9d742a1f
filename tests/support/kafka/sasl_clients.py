"""Client libraries with long sessions.

All programs do the same for each login. Ten times a second an idempotent producer writes to two
partitions of the login's topic, and twice a second a transactional one to a third, of which every
third transaction is aborted. Values are their numbers in their partition, and a group of one, which
reads what is committed, must see 0, 1, 2 …: what is lost, doubled or out of order ends the program.
A group that joins again before it has committed reads from there again, which is correct.
They continue until a file exists, and print how many records each partition has.
"""

import json
import subprocess
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import confluent_kafka as confluent

from proxy.wire.apis import LIST_OFFSETS
from tests.support.kafka import go, java
from tests.support.kafka.clients import SslUser, User, password_of
from tests.support.kafka.cluster import END_WITH_PARENT, KafkaCluster
from tests.support.kafka.kerberos import HOST, REALM, SERVICE
from tests.support.kafka.sasl_brokers import ALICE, SaslBrokers
from tests.support.kafka.sessions import (
    CALL_SECONDS,
    PARTITIONS,
    PLAIN_PARTITIONS,
    Client,
    KafkaPython,
    Record,
    Records,
    SessionFailed,
    run_python,
)
from tests.support.kafka.wire_client import ask

TOKEN = "delegation token"
"""SCRAM-SHA-256 with a delegation token in place of a user."""
_RUN_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """Alice, by one mechanism, in one library."""

    name: str
    """The client.id, topic, group and transactional id."""
    how: str
    """Its mechanism, or `TOKEN`."""
    brokers: SaslBrokers
    secure: bool = False
    """Whether it speaks TLS with the proxy; Java does not here."""

    @property
    def mechanism(self) -> str:
        return "SCRAM-SHA-256" if self.how == TOKEN else self.how

    @property
    def user(self) -> User:
        issuer, ca = self.brokers.issuer, self.brokers.ca
        if self.secure:
            return SslUser(name=ALICE, mechanism=self.mechanism, issuer=issuer, ca=ca)
        return User(name=ALICE, mechanism=self.mechanism, issuer=issuer)

    @property
    def _credentials(self) -> tuple[str, str]:
        if self.how == TOKEN:
            return self.brokers.token_id, self.brokers.token_hmac
        return ALICE, password_of(ALICE)

    def token_file(self, directory: Path) -> Path:
        file = directory / f"{self.name}.jwt"
        file.write_text(self.user.token())
        return file

    def java(self, directory: Path) -> Path:
        """A properties file for `Sessions.java`."""
        settings = {
            "client.id": self.name,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": self.mechanism,
            "sasl.jaas.config": self._jaas(directory),
            "sasl.kerberos.service.name": SERVICE,
        }
        if self.how == "OAUTHBEARER":
            settings["sasl.login.callback.handler.class"] = "Sessions$FileToken"
        path = directory / f"{self.name}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

    def _jaas(self, directory: Path) -> str:
        name, password = self._credentials
        login = f'username="{name}" password="{password}"'
        module = "org.apache.kafka.common.security"
        match self.how:
            case "GSSAPI":
                return self.brokers.realm.jaas(ALICE)
            case "OAUTHBEARER":
                file = self.token_file(directory)
                return f'{module}.oauthbearer.OAuthBearerLoginModule required file="{file}";'
            case "PLAIN":
                return f"{module}.plain.PlainLoginModule required {login};"
        is_token = ' tokenauth="true"' if self.how == TOKEN else ""
        return f"{module}.scram.ScramLoginModule required {login}{is_token};"

    def go(self, directory: Path) -> dict[str, Any]:
        """A login as Go's package `sessions` reads it."""
        name, password = self._credentials
        return {
            "Name": self.name,
            "Mechanism": self.mechanism,
            "User": name,
            "Password": password,
            "IsToken": self.how == TOKEN,
            "TokenFile": str(self.token_file(directory)),
            "Keytab": str(self.brokers.realm.keytab(ALICE)),
            "Krb5Conf": str(self.brokers.realm.config),
            "Realm": REALM,
            "Service": f"{SERVICE}/{HOST}",
            "CAFile": str(self.brokers.ca) if self.secure else "",
        }


# --- the programs


Run = Callable[[str, Sequence[Login], Path, Path], Records]
"""Bootstrap servers, logins, the file that ends the run, a directory for files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A client library, and the mechanisms by which it can log in."""

    name: str
    mechanisms: Sequence[str]
    run: Run


def run_java(
    version: str, bootstrap: str, logins: Sequence[Login], until: Path, directory: Path
) -> Records:
    """Kafka's own clients, of any version."""
    path = f"{java.compiled('Sessions')}:{java.client_class_path(version)}"
    options = [*java.FAST_START, "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    options += logins[0].brokers.realm.jvm_options
    files = [str(login.java(directory)) for login in logins]
    command = ["java", *options, "-cp", path, "Sessions", bootstrap, str(until), *files]
    return run_program(command)


def run_go(
    library: str,
    bootstrap: str,
    logins: Sequence[Login],
    until: Path,
    directory: Path,
    *,
    is_raw: bool = False,
) -> Records:
    """A program of `go/`; `is_raw` is for sarama alone."""
    file = directory / f"{logins[0].name}.json"
    file.write_text(json.dumps([login.go(directory) | {"IsRaw": is_raw} for login in logins]))
    return run_program([str(go.program(library)), bootstrap, str(until), str(file)])


def run_program(command: Sequence[str]) -> Records:
    done = subprocess.run(
        [*END_WITH_PARENT, *command], capture_output=True, text=True, timeout=_RUN_SECONDS
    )
    if done.returncode != 0:
        raise SessionFailed(f"{command[0]}: {done.stderr[-8000:]}")
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    return {name: json.loads(numbers) for name, numbers in lines}


class Confluent(Client):
    """librdkafka."""

    def __init__(self, login: Login, bootstrap: str) -> None:
        def settings(suffix: str = "", **more: Any) -> dict[str, Any]:
            return login.user.confluent(bootstrap, client_id=login.name + suffix, **more)

        self._topic = login.name
        self._error: confluent.KafkaError | None = None
        self._plain = confluent.Producer(settings(enable_idempotence=True, linger_ms=2))
        self._transactional = confluent.Producer(
            settings(".transactions", transactional_id=login.name, linger_ms=2)
        )
        self._consumer = confluent.Consumer(
            settings(
                ".group",
                group_id=login.name,
                auto_offset_reset="earliest",
                auto_commit_interval_ms=1_000,
            )
        )

    def start(self) -> None:
        self._consumer.subscribe([self._topic])
        self._transactional.init_transactions(CALL_SECONDS)

    def send(self, partition: int, value: bytes) -> None:
        self._produce(self._plain, partition, value)
        self._plain.poll(0)

    def _produce(self, producer: confluent.Producer, partition: int, value: bytes) -> None:
        producer.produce(self._topic, value, partition=partition, on_delivery=self._delivered)
        if self._error is not None:
            raise SessionFailed(str(self._error))

    def _delivered(self, error: confluent.KafkaError | None, _: confluent.Message) -> None:
        self._error = self._error or error

    def transact(self, values: Sequence[bytes], *, is_committed: bool) -> None:
        self._transactional.begin_transaction()
        for value in values:
            self._produce(self._transactional, PLAIN_PARTITIONS, value)
        if is_committed:
            self._transactional.commit_transaction(CALL_SECONDS)
        else:
            self._transactional.flush(CALL_SECONDS)
            self._transactional.abort_transaction(CALL_SECONDS)

    def finish(self) -> None:
        if self._plain.flush(CALL_SECONDS) or self._error is not None:
            raise SessionFailed(f"not all was acknowledged: {self._error}")

    def poll(self) -> list[Record]:
        found = []
        for message in self._consumer.consume(1_000, timeout=0.2):
            partition, offset, value = message.partition(), message.offset(), message.value()
            if message.error() or partition is None or offset is None or value is None:
                raise SessionFailed(str(message.error()))
            found.append((partition, offset, value))
        return found

    def close(self) -> None:
        self._consumer.close()


PROGRAMS: Sequence[Program] = (
    Program(name="java-4.1.0", mechanisms=("GSSAPI", TOKEN), run=partial(run_java, "4.1.0")),
    Program(name="java-2.2.2", mechanisms=("SCRAM-SHA-512",), run=partial(run_java, "2.2.2")),
    Program(name="librdkafka", mechanisms=("OAUTHBEARER",), run=partial(run_python, Confluent)),
    Program(name="kafka-python", mechanisms=("PLAIN",), run=partial(run_python, KafkaPython)),
    Program(name="franz-go", mechanisms=("SCRAM-SHA-256",), run=partial(run_go, "franz")),
    Program(name="sarama", mechanisms=("GSSAPI",), run=partial(run_go, "sarama")),
)
"""Each library and each mechanism once, and both implementations of GSSAPI."""
WITHOUT_JAVA = tuple(one for one in PROGRAMS if not one.name.startswith("java"))
SECURE_PROGRAMS = tuple(one for one in PROGRAMS if one.name in {"librdkafka", "franz-go"})
"""TLS is independent of mechanisms; `test_tls` covers Java's."""
RAW = Program(name="sarama-raw", mechanisms=("PLAIN",), run=partial(run_go, "sarama", is_raw=True))
OLD_PROGRAMS: Sequence[Program] = (
    Program(name="java-2.1.1", mechanisms=("SCRAM-SHA-256",), run=partial(run_java, "2.1.1")),
    RAW,
)
"""Clients that do not re-authenticate: SaslAuthenticate v0 and raw tokens."""


def end_offsets(kafka: KafkaCluster, topics: Iterable[str]) -> Records:
    """Of the partitions without transactions, whose records are counted in them."""
    partitions = [
        {"partition_index": index, "current_leader_epoch": -1, "timestamp": -1}
        for index in range(PLAIN_PARTITIONS)
    ]
    answer = ask(
        kafka.address(),
        LIST_OFFSETS,
        7,
        {"topics": [{"name": name, "partitions": partitions} for name in topics]},
    )
    return {
        topic.name: [
            one.offset for one in sorted(topic.partitions, key=lambda one: one.partition_index)
        ]
        for topic in answer.topics
    }


class Running:
    """Programs at work, each by all its mechanisms, until those of the directory are stopped."""

    def __init__(
        self,
        programs: Sequence[Program],
        brokers: SaslBrokers,
        bootstrap: str,
        prefix: str,
        directory: Path,
        *,
        secure: bool = False,
    ) -> None:
        """`secure`: connect to the proxy over TLS."""
        self._until = directory / "end"
        self._running: list[Future[Records]] = []
        self._pool = ThreadPoolExecutor(len(programs))
        self.logins: list[Login] = []
        for program in programs:
            logins = [
                _login(f"{prefix}-{program.name}", how, brokers, secure=secure)
                for how in program.mechanisms
            ]
            run = partial(program.run, bootstrap, logins, self._until, directory)
            self._running.append(self._pool.submit(run))
            self.logins += logins

    @property
    def client_ids(self) -> list[str]:
        """Client ids of all busy connections."""
        suffixes = ("", ".transactions", ".group")
        return [login.name + suffix for login in self.logins for suffix in suffixes]

    def check(self) -> None:
        """Raise the error of a program that ended early."""
        for each in self._running:
            if each.done():
                each.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._until.touch()
        self._pool.shutdown()

    def stop(self) -> Records:
        """End the programs; return the records per partition once all were read."""
        self._until.touch()
        found: dict[str, Sequence[int]] = {}
        for each in self._running:
            found |= each.result()
        return found


def _login(prefix: str, how: str, brokers: SaslBrokers, *, secure: bool) -> Login:
    """A login that has its topic."""
    name = f"{prefix}-{how}".lower().replace(" ", "-")
    brokers.kafka.create_topic(name, partitions=PARTITIONS)
    return Login(name=name, how=how, brokers=brokers, secure=secure)
