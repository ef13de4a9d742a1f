"""Application of the tests: produces numbered messages until SIGTERM, and then some last ones.

    python -m tests.support.kubernetes.application TOPIC KEY TOKEN_FILE

Its bootstrap server is what `KAFKA_BOOTSTRAP_SERVERS` says; it uses TLS where `AUTHORITY` names a
file. The last message is `last N of M`: of M messages N were acknowledged.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

LAST: Final = 200
"""Messages that are sent after SIGTERM."""
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

    producer = Producer(_settings(token_file))
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
    left = producer.flush(_FLUSH_SECONDS)
    sys.stderr.write(f"{acknowledged} of {number} acknowledged, {left} left\n")
    return int(acknowledged < number or left > 0)


def _settings(token_file: str) -> dict[str, Any]:
    token = Path(token_file).read_text().strip()
    authority = os.environ.get("AUTHORITY")
    tls = {"security.protocol": "SASL_SSL", "ssl.ca.location": authority} if authority else {}
    return {
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
