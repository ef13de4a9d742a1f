"""Client of the demo: a producer that reads back, or a consumer too old to re-authenticate.

confluent-kafka (librdkafka) re-authenticates by itself at 90 % of the announced lifetime. Its
messages are numbered, so that lost, duplicate and misordered ones are found.

`--old` uses kafka-python, configured for a cluster of Kafka 1.0. It sends SaslAuthenticate v0,
whose response has no field for a lifetime (KIP-368), so it cannot know when to re-authenticate.

The client ends when its stdin ends.
"""

import argparse
import logging
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jwt
from confluent_kafka import Consumer, KafkaError, Message, Producer
from kafka import KafkaConsumer

from proxy.demo.setup import AUDIENCE, ISSUER, KEY_ID, Report

PRODUCE_SECONDS = 0.1
"""Seconds between two messages."""
REPORT_SECONDS = 0.5
"""Seconds between two reports."""
DRAIN_SECONDS = 30.0
"""Seconds in which the last messages must be acknowledged and read back."""
TOKEN_SECONDS = 20.0
"""Lifetime of a token in seconds. librdkafka fetches the next one at 80 %, so a token has at least
4 s left when a session begins: sometimes the token bounds the session, sometimes
`connections.max.reauth.ms`. With a much shorter lifetime, sessions could be shorter than the second
that must lie between two re-authentications."""


class ModernClient:
    """Producer and consumer of one topic."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.report = Report()
        self._topic = arguments.topic
        self._number = 0
        self._produce_at = 0.0
        self._last_read: dict[int, int] = {}
        common = {
            "bootstrap.servers": arguments.bootstrap_server,
            "client.id": arguments.client_id,
            "security.protocol": "SASL_PLAINTEXT",
            "reconnect.backoff.ms": 1_000,
            "error_cb": self._error,
        } | _login(arguments)
        self._producer = Producer(common | {"enable.idempotence": True})
        group = {"group.id": f"{self._topic}-readers", "auto.offset.reset": "earliest"}
        self._consumer = Consumer(common | group)
        self._consumer.subscribe([self._topic])

    def _error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._AUTHENTICATION:  # noqa: SLF001 - librdkafka's own code names
            self.report.refused += 1
        elif error.code() == KafkaError._TRANSPORT:  # noqa: SLF001
            self.report.connections_lost += 1
        self.report.add_error(error.str())

    def work(self) -> None:
        """Send the next message if it is time, and read one."""
        if (now := time.monotonic()) >= self._produce_at:
            self._produce_at = now + PRODUCE_SECONDS
            self._number += 1
            value = str(self._number).encode()
            self._producer.produce(self._topic, value, on_delivery=self._delivered)
        self._read(PRODUCE_SECONDS / 2)

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self.report.delivered += 1
        else:
            self.report.undelivered += 1
            self.report.add_error(error.str())

    def _read(self, within: float) -> None:
        self._producer.poll(0)
        message = self._consumer.poll(within)
        if message is None:
            return
        if error := message.error():
            self.report.add_error(error.str())
            return
        value, partition = message.value(), message.partition()
        assert value is not None
        assert partition is not None
        if int(value) <= self._last_read.get(partition, 0):
            self.report.out_of_order += 1
            return
        self._last_read[partition] = int(value)
        self.report.received += 1

    def end(self) -> None:
        """Wait for acknowledgements, read the rest of the messages, and leave the group."""
        deadline = time.monotonic() + DRAIN_SECONDS
        if self.report.delivered:
            self._producer.flush(DRAIN_SECONDS)
        else:
            self._producer.purge()
        while self.report.received < self.report.delivered and time.monotonic() < deadline:
            self._read(0.1)
        self._consumer.close()


def _login(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return librdkafka's settings for the login."""
    if arguments.password_file is not None:
        return {
            "sasl.mechanisms": "SCRAM-SHA-256",
            "sasl.username": arguments.client_id,
            "sasl.password": arguments.password_file.read_text(),
        }

    def oauth(_config: str) -> tuple[str, float]:
        now, key = time.time(), arguments.key_file.read_bytes()
        expires = now + TOKEN_SECONDS
        user = arguments.client_id
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": user, "iat": now, "exp": expires}
        return jwt.encode(claims, key, algorithm="ES256", headers={"kid": KEY_ID}), expires

    return {"sasl.mechanisms": "OAUTHBEARER", "oauth_cb": oauth}


class OldClient(logging.Handler):
    """Consumer of another client's topic; handles kafka-python's log, which alone names losses."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(logging.ERROR)
        self.report = Report()
        logging.basicConfig(stream=sys.stderr, level=logging.INFO)
        logging.getLogger("kafka.net.connection").addHandler(self)
        self._consumer = KafkaConsumer(
            arguments.topic,
            bootstrap_servers=arguments.bootstrap_server,
            api_version=(1, 0),
            client_id=arguments.client_id,
            group_id=None,  # the mock cluster keeps a lost member for 45 s, and others wait for it
            auto_offset_reset="earliest",
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="SCRAM-SHA-256",
            sasl_plain_username=arguments.client_id,
            sasl_plain_password=arguments.password_file.read_text(),
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Count lost connections and refused logins."""
        text = record.getMessage()
        if "Connection lost" in text:
            self.report.connections_lost += 1
            self.report.add_error(text.rpartition("Connection lost: ")[2])
        if "SaslAuthenticationFailed" in text:
            self.report.refused += 1

    def work(self) -> None:
        """Read available messages."""
        for records in self._consumer.poll(timeout_ms=250).values():
            self.report.received += len(records)

    def end(self) -> None:
        """Close the connections."""
        self._consumer.close()


def arg_parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(prog="proxy.demo.client")
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--client-id", required=True, help="also the user")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--old", action="store_true", help="a client that cannot re-authenticate")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--password-file", type=Path, help="SCRAM-SHA-256")
    how.add_argument("--key-file", type=Path, help="OAUTHBEARER, with tokens signed by this key")
    return parser


def _stop_event() -> threading.Event:
    """Return an event that is set when stdin ends, because the demo stops the client or is gone."""
    stop = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait, daemon=True).start()
    return stop


def main() -> int:
    """Run the client; return the exit status."""
    arguments = arg_parser().parse_args()
    client = OldClient(arguments) if arguments.old else ModernClient(arguments)
    stop, report_at = _stop_event(), 0.0
    while not stop.is_set():
        client.work()
        if (now := time.monotonic()) >= report_at:
            client.report.send()
            report_at = now + REPORT_SECONDS
    client.end()
    client.report.send()  # again: connections may be lost until the client has closed them
    return 0


if __name__ == "__main__":
    sys.exit(main())
