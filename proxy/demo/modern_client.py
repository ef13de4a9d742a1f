"""Client that re-authenticates: produces and reads back, until stdin ends.

confluent-kafka (librdkafka) re-authenticates by itself at 90 % of the announced lifetime. Messages
are numbered, so that lost, duplicate and misordered ones are found.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer

from proxy.demo.identity import token
from proxy.demo.report import Report, stop_event

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


class Client:
    """Producer and consumer of one topic, with their counts."""

    def __init__(self, common: dict[str, Any], topic: str) -> None:
        self.report = Report()
        self._topic = topic
        self._number = 0
        self._last_read: dict[int, int] = {}
        common = common | {"error_cb": self._error}
        self._producer = Producer(common | {"enable.idempotence": True})
        group = {"group.id": f"{topic}-readers", "auto.offset.reset": "earliest"}
        self._consumer = Consumer(common | group)
        self._consumer.subscribe([topic])

    def _error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._AUTHENTICATION:  # noqa: SLF001 - librdkafka's own code names
            self.report.refused += 1
        elif error.code() == KafkaError._TRANSPORT:  # noqa: SLF001
            self.report.connections_lost += 1
        self.report.add_error(error.str())

    def produce(self) -> None:
        """Send the next message."""
        self._number += 1
        value = str(self._number).encode()
        self._producer.produce(self._topic, value, on_delivery=self._delivered)

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self.report.delivered += 1
        else:
            self.report.undelivered += 1
            self.report.add_error(error.str())

    def read(self, within: float) -> None:
        """Read one message, if one comes `within` seconds."""
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
        number = int(value)
        if number <= self._last_read.get(partition, 0):
            self.report.out_of_order += 1
            return
        self._last_read[partition] = number
        self.report.received += 1

    def drain(self) -> None:
        """Wait for acknowledgements, then read the rest of the messages."""
        deadline = time.monotonic() + DRAIN_SECONDS
        if self.report.delivered:
            self._producer.flush(DRAIN_SECONDS)
        else:
            self._producer.purge()
        while self.report.received < self.report.delivered and time.monotonic() < deadline:
            self.read(0.1)

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()


def run(client: Client) -> None:
    """Produce and consume until stopped, then drain."""
    stop = stop_event()
    produce_at = report_at = time.monotonic()
    while not stop.is_set():
        now = time.monotonic()
        if now >= produce_at:
            client.produce()
            produce_at = now + PRODUCE_SECONDS
        if now >= report_at:
            client.report.send()
            report_at = now + REPORT_SECONDS
        client.read(PRODUCE_SECONDS / 2)
    client.drain()
    client.close()
    client.report.send()


def login(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return librdkafka's settings for the login."""
    if arguments.password_file is not None:
        return {
            "sasl.mechanisms": "SCRAM-SHA-256",
            "sasl.username": arguments.client_id,
            "sasl.password": arguments.password_file.read_text(),
        }

    def oauth(_config: str) -> tuple[str, float]:
        return token(arguments.key_file, arguments.client_id, TOKEN_SECONDS)

    return {"sasl.mechanisms": "OAUTHBEARER", "oauth_cb": oauth}


def arg_parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(prog="proxy.demo.modern_client")
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--client-id", required=True, help="also the user")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--password-file", type=Path, help="SCRAM-SHA-256")
    how.add_argument("--key-file", type=Path, help="OAUTHBEARER, with tokens signed by this key")
    return parser


def main() -> int:
    """Run the client; return the exit status."""
    arguments = arg_parser().parse_args()
    common = {
        "bootstrap.servers": arguments.bootstrap_server,
        "client.id": arguments.client_id,
        "security.protocol": "SASL_PLAINTEXT",
        "reconnect.backoff.ms": 1_000,
    }
    run(Client(common | login(arguments), arguments.client_id))
    return 0


if __name__ == "__main__":
    sys.exit(main())
