"""Mock Kafka cluster without Java: `python -m proxy.demo.broker`, until stdin ends.

It is librdkafka's mock cluster: three brokers that serve real produce and fetch requests and
consumer groups from memory. It prints its bootstrap servers in one line once it runs.
"""

import sys

from confluent_kafka import Producer

BROKERS = 3
"""Number of brokers."""
START_SECONDS = 60.0
"""Seconds in which the cluster must start."""


def main() -> int:
    """Run the cluster; return the exit status."""
    cluster = Producer({"bootstrap.servers": "unused:1", "test.mock.num.brokers": BROKERS})
    brokers = cluster.list_topics(timeout=START_SECONDS).brokers.values()
    print(",".join(f"{broker.host}:{broker.port}" for broker in brokers), flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
