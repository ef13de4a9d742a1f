"""Client that cannot re-authenticate: a consumer, until stdin ends.

kafka-python, configured for a cluster of Kafka 1.0, sends SaslAuthenticate v0, whose response has
no field for a lifetime (KIP-368), so it cannot know when to re-authenticate.
"""

import argparse
import logging
import sys
import time
from contextlib import suppress
from pathlib import Path

from kafka import KafkaConsumer
from kafka.errors import KafkaConnectionError

from proxy.demo.report import Report, stop_event

REPORT_SECONDS = 0.5
"""Seconds between two reports."""


class LostConnections(logging.Handler):
    """Counter of lost connections and refused logins, which kafka-python only logs."""

    def __init__(self, report: Report) -> None:
        super().__init__(logging.ERROR)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        """Count a line of the library's log."""
        text = record.getMessage()
        if "Connection lost" in text:
            self._report.connections_lost += 1
            self._report.add_error(text.rpartition("Connection lost: ")[2])
        if "SaslAuthenticationFailed" in text:
            self._report.refused += 1


def arg_parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(prog="proxy.demo.old_client")
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--client-id", required=True, help="also the user")
    parser.add_argument("--password-file", required=True, type=Path, help="SCRAM-SHA-256")
    parser.add_argument("--topic", required=True)
    return parser


def main() -> int:
    """Run the client; return the exit status."""
    arguments = arg_parser().parse_args()
    report = Report()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    logging.getLogger("kafka.net.connection").addHandler(LostConnections(report))
    stop = stop_event()
    consumer = KafkaConsumer(
        arguments.topic,
        bootstrap_servers=arguments.bootstrap_server,
        api_version=(1, 0),
        client_id=arguments.client_id,
        group_id=arguments.client_id,
        auto_offset_reset="earliest",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_plain_username=arguments.client_id,
        sasl_plain_password=arguments.password_file.read_text(),
    )
    report_at = 0.0
    while not stop.is_set():
        # kafka-python raises it if the connection is closed during FindCoordinator.
        with suppress(KafkaConnectionError):
            for records in consumer.poll(timeout_ms=250).values():
                report.received += len(records)
        if time.monotonic() >= report_at:
            report.send()
            report_at = time.monotonic() + REPORT_SECONDS
    consumer.close(autocommit=False)
    report.send()  # again: connections may be lost while the consumer leaves its group
    return 0


if __name__ == "__main__":
    sys.exit(main())
