"""Tests that need a real Apache Kafka; `tests/support/kafka/` starts it."""
