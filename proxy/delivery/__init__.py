"""Delivery of the event log to a Kafka topic, an object store or a shared folder."""
