"""Differential test of SASL: the same bytes to Kafka and to the proxy, and the differences."""
