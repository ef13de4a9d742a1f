"""Kafka's wire format: API registry, primitive types, ApiVersions, broker addresses."""
