"""Kafka's wire format: API table, headers, codec, and walks through messages."""
