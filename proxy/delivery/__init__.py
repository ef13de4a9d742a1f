"""Delivery of the event log to a Kafka topic."""
