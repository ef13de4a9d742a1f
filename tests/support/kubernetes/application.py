"""Test application that produces numbered messages until SIGTERM, and some after it.

    python -m tests.support.kubernetes.application TOPIC KEY TOKEN_FILE

Its bootstrap server is what `KAFKA_BOOTSTRAP_SERVERS` says; it uses TLS where `AUTHORITY` names a
file. The last message is `last N of M`: of M messages N were acknowledged. How often it connected
is in the file `CONNECTIONS` all the while, and at the end a message with the key `KEY/connections`.
"""

import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

LAST: Final = 200
"""Number of messages sent after SIGTERM."""
CONNECTIONS: Final = Path("/tmp/connections")  # noqa: S108 - of the pod
"""File with the number of connections so far."""
_EVERY_SECONDS: Final = 0.02
_FLUSH_SECONDS: Final = 60.0


def main(topic: str, key: str, token_file: str) -> int:
    """Produce until SIGTERM; return 1 if a message was lost."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    acknowledged = 0

    def delivered(error: Any, _message: Any) -> None:
        nonlocal acknowledged
        if error is None:
            acknowledged += 1
            if acknowledged == 1:
                Path("/tmp/delivered").touch()  # noqa: S108 - of the pod
        else:
            sys.stderr.write(f"lost: {error}\n")

    log = logging.Logger("librdkafka")
    log.addHandler(_ConnectionCounter())
    producer = Producer(_settings(token_file, key), logger=log)
    number = 0

    def send() -> None:
        nonlocal number
        producer.produce(topic, str(number), key, on_delivery=delivered)
        producer.poll(0)
        number += 1

    while not stopping.wait(_EVERY_SECONDS):
        send()
    for _ in range(LAST):
        send()
        time.sleep(_EVERY_SECONDS / 2)
    producer.flush(_FLUSH_SECONDS)
    producer.produce(topic, f"last {acknowledged} of {number}", key)
    producer.produce(topic, CONNECTIONS.read_text(), f"{key}/connections")
    left = producer.flush(_FLUSH_SECONDS)
    sys.stderr.write(f"{acknowledged} of {number} acknowledged, {left} left\n")
    return int(acknowledged < number or left > 0)


class _ConnectionCounter(logging.Handler):
    """Counts connections in librdkafka's log with `debug=broker`.

    Its statistics would not do: their counts go with a broker that it forgets.
    """

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Update the number if the line is about a connection."""
        if ": Connected to " in record.getMessage():
            self._count += 1
            written = CONNECTIONS.with_suffix(".new")
            written.write_text(str(self._count))
            written.replace(CONNECTIONS)


def _settings(token_file: str, client_id: str) -> dict[str, Any]:
    token = Path(token_file).read_text().strip()
    authority = os.environ.get("AUTHORITY")
    tls = {"security.protocol": "SASL_SSL", "ssl.ca.location": authority} if authority else {}
    return {
        "client.id": client_id,
        "debug": "broker",
        "bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"],
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "OAUTHBEARER",
        "oauth_cb": lambda _: (token, time.time() + 3_000),
        "enable.idempotence": True,
        "linger.ms": 0,
        **tls,
    }


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
