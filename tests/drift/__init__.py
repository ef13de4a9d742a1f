"""Comparison of Kafka's releases with the proxy's definitions: `make kafka-drift`."""
