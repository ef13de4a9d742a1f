"""Kafka's releases beside what this proxy knows: `make kafka-drift`."""
