"""Sessions of a library of Python, in threads: `sasl_clients` describes what all programs do.

This module is also a program, for libraries that cannot be in the environment of the tests or that
wait without end. Its arguments are `kafka-python` or `aiokafka`, bootstrap servers, a file (it
continues until that exists), and a file with logins as the programs of `go/` read it, by password.
"""

import asyncio
import importlib
import itertools
import json
import math
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import kafka

PLAIN_PARTITIONS = 2
PARTITIONS = PLAIN_PARTITIONS + 1
_ROUND_SECONDS = 0.1
_ROUNDS_PER_TRANSACTION = 5
_ABORTED_OF = 3
_READ_ON_SECONDS = 60.0
CALL_SECONDS = 60.0

Records = Mapping[str, Sequence[int]]
"""Numbers of records per partition, by the login's name."""
Record = tuple[int, int, bytes]
"""Partition, offset and value."""


class SessionFailed(Exception):
    """A record was refused, lost, duplicated or reordered."""


class Login(Protocol):
    """A user, and the name of its client id, topic, group and transactional id."""

    @property
    def name(self) -> str: ...

    @property
    def user(self) -> Any:
        """Settings by library, as `tests.support.kafka.clients.User` has them."""


class Client(ABC):
    """What a library does for a login."""

    @abstractmethod
    def __init__(self, login: Login, bootstrap: str) -> None: ...

    def start(self) -> None:
        """Connect before records are sent and read."""
        return

    @abstractmethod
    def send(self, partition: int, value: bytes) -> None:
        """Send with the idempotent producer, without waiting."""

    @abstractmethod
    def transact(self, values: Sequence[bytes], *, is_committed: bool) -> None:
        """Send in a transaction, and wait."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until all that was sent is acknowledged."""

    @abstractmethod
    def poll(self) -> list[Record]:
        """Read records; wait a moment if no record has arrived."""

    @abstractmethod
    def close(self) -> None:
        """Close producers and consumer, also failed ones."""


class Session:
    """A client at work, in two threads."""

    def __init__(self, client: Client, until: Path) -> None:
        self.written = [0] * PARTITIONS
        self._client = client
        self._until = until
        self._is_written = False
        self._has_failed = False

    def write(self) -> None:
        with self._noting_failure():
            for number in itertools.count():
                if self._until.exists() or self._has_failed:
                    break
                for partition in range(PLAIN_PARTITIONS):
                    self._client.send(partition, self._take(partition))
                if number % _ROUNDS_PER_TRANSACTION == 0:
                    self._transact(number // _ROUNDS_PER_TRANSACTION)
                time.sleep(_ROUND_SECONDS)
            self._client.finish()
            self._is_written = True

    def _transact(self, number: int) -> None:
        if number % _ABORTED_OF == 1:
            self._client.transact([b"aborted"], is_committed=False)
        else:
            values = [self._take(PLAIN_PARTITIONS) for _ in range(2)]
            self._client.transact(values, is_committed=True)

    def _take(self, partition: int) -> bytes:
        self.written[partition] += 1
        return str(self.written[partition] - 1).encode()

    def read(self) -> None:
        with self._noting_failure():
            next_numbers, next_offsets = [0] * PARTITIONS, [0] * PARTITIONS
            deadline = math.inf
            while not (self._has_failed or (self._is_written and next_numbers == self.written)):
                if self._is_written:
                    deadline = min(deadline, time.monotonic() + _READ_ON_SECONDS)
                if time.monotonic() > deadline:
                    raise SessionFailed(f"read {next_numbers} of {self.written}")
                for partition, offset, value in self._client.poll():
                    if offset < next_offsets[partition]:
                        continue  # read again after a rebalance before the commit
                    next_offsets[partition] = offset + 1
                    if value != str(next_numbers[partition]).encode():
                        raise SessionFailed(f"{partition}: {value!r}, not {next_numbers}")
                    next_numbers[partition] += 1

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._has_failed = True
            raise


class KafkaPython(Client):
    """kafka-python, of any version since 2.1."""

    def __init__(self, login: Login, bootstrap: str) -> None:
        def settings(suffix: str = "", **more: Any) -> dict[str, Any]:
            return dict(login.user.python(bootstrap, client_id=login.name + suffix, **more))

        self._topic = login.name
        self._sent: list[Any] = []
        self._plain = kafka.KafkaProducer(**settings(), enable_idempotence=True)
        self._transactional = kafka.KafkaProducer(
            **settings(".transactions"), transactional_id=login.name
        )
        # Version 2 joins no group: its heartbeat thread may read the response to a login (2.3.3).
        self._has_group = not kafka.__version__.startswith("2.")
        self._consumer = kafka.KafkaConsumer(
            **settings(".group"),
            group_id=login.name if self._has_group else None,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=1_000,
            isolation_level="read_committed",
        )

    def start(self) -> None:
        # If it joins before it knows the topic, it gets no partition.
        assert self._consumer.partitions_for_topic(self._topic)
        if self._has_group:
            self._consumer.subscribe([self._topic])
        else:
            partitions = [kafka.TopicPartition(self._topic, one) for one in range(PARTITIONS)]
            self._consumer.assign(partitions)
        self._transactional.init_transactions()

    def send(self, partition: int, value: bytes) -> None:
        self._sent.append(self._plain.send(self._topic, value, partition=partition))

    def transact(self, values: Sequence[bytes], *, is_committed: bool) -> None:
        self._transactional.begin_transaction()
        sent = [
            self._transactional.send(self._topic, value, partition=PLAIN_PARTITIONS)
            for value in values
        ]
        for each in sent:
            each.get(CALL_SECONDS)
        if is_committed:
            self._transactional.commit_transaction()
        else:
            self._transactional.abort_transaction()

    def finish(self) -> None:
        for each in self._sent:
            each.get(CALL_SECONDS)

    def poll(self) -> list[Record]:
        return [
            (record.partition, record.offset, record.value)
            for records in self._consumer.poll(timeout_ms=200).values()
            for record in records
        ]

    def close(self) -> None:
        # Unacknowledged records fail after `delivery_timeout_ms`.
        self._plain.close()
        self._transactional.close()
        self._consumer.close()


class KafkaPythonWithoutTransactions(KafkaPython):
    """kafka-python, whose transactions time out after a connection ended (2.3.3, 3.0.12)."""

    def transact(self, values: Sequence[bytes], *, is_committed: bool) -> None:
        if is_committed:
            for value in values:
                self._plain.send(self._topic, value, partition=PLAIN_PARTITIONS).get(CALL_SECONDS)


class Aiokafka(Client):
    """aiokafka, in an event loop of its own."""

    def __init__(self, login: Login, bootstrap: str) -> None:
        self._topic = login.name
        self._sent: list[asyncio.Future[Any]] = []
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._plain, self._transactional, self._consumer = self._run(self._open(login, bootstrap))

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _open(self, login: Login, bootstrap: str) -> tuple[Any, Any, Any]:
        library: Any = importlib.import_module("aiokafka")

        def settings(suffix: str = "") -> dict[str, Any]:
            return dict(login.user.python(bootstrap, client_id=login.name + suffix))

        parts = (
            library.AIOKafkaProducer(**settings(), enable_idempotence=True),
            library.AIOKafkaProducer(**settings(".transactions"), transactional_id=login.name),
            library.AIOKafkaConsumer(
                login.name,
                **settings(".group"),
                group_id=login.name,
                auto_offset_reset="earliest",
                auto_commit_interval_ms=1_000,
                isolation_level="read_committed",
            ),
        )
        for each in parts:
            await each.start()
        return parts

    def send(self, partition: int, value: bytes) -> None:
        sending = self._plain.send(self._topic, value, partition=partition)
        self._sent.append(self._run(sending))

    def transact(self, values: Sequence[bytes], *, is_committed: bool) -> None:
        self._run(self._transact(values, is_committed))

    async def _transact(self, values: Sequence[bytes], is_committed: bool) -> None:
        producer = self._transactional
        await producer.begin_transaction()
        for value in values:
            await producer.send_and_wait(self._topic, value, partition=PLAIN_PARTITIONS)
        await (producer.commit_transaction() if is_committed else producer.abort_transaction())

    def finish(self) -> None:
        self._run(self._all_sent())

    async def _all_sent(self) -> None:
        await asyncio.gather(*self._sent)

    def poll(self) -> list[Record]:
        found = self._run(self._consumer.getmany(timeout_ms=200))
        return [(one.partition, one.offset, one.value) for each in found.values() for one in each]

    def close(self) -> None:
        for each in (self._plain, self._transactional, self._consumer):
            self._run(each.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)


def run_python(
    library: type[Client], bootstrap: str, logins: Sequence[Login], until: Path, _: Path
) -> Records:
    """A library of Python, in threads."""
    sessions = []
    with ExitStack() as stack:
        for login in logins:
            client = library(login, bootstrap)
            stack.callback(client.close)
            client.start()
            sessions.append(Session(client, until))
        with ThreadPoolExecutor(2 * len(sessions)) as pool:
            running = [pool.submit(part) for one in sessions for part in (one.write, one.read)]
        for each in running:
            each.result()
    return {login.name: one.written for login, one in zip(logins, sessions, strict=True)}


@dataclass(frozen=True, slots=True)
class PasswordLogin:
    """A login of the program."""

    settings: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.settings["Name"]

    @property
    def user(self) -> "PasswordLogin":
        return self

    def python(self, bootstrap: str, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap_servers": bootstrap,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": self.settings["Mechanism"],
            "sasl_plain_username": self.settings["User"],
            "sasl_plain_password": self.settings["Password"],
            **more,
        }


def main(name: str, bootstrap: str, until: str, file: str) -> None:
    """Run the program."""
    libraries: dict[str, type[Client]] = {
        "kafka-python": KafkaPythonWithoutTransactions,
        "aiokafka": Aiokafka,
    }
    logins = [PasswordLogin(one) for one in json.loads(Path(file).read_text())]
    for login, written in run_python(
        libraries[name], bootstrap, logins, Path(until), Path()
    ).items():
        print(login, json.dumps(written))  # noqa: T201 - the output


if __name__ == "__main__":
    main(*sys.argv[1:])
