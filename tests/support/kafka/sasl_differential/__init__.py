"""Differential test of SASL: the same bytes are sent to Kafka and the proxy."""
