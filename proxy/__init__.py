"""SASL re-authentication proxy for Apache Kafka."""
