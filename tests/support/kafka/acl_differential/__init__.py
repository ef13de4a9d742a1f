"""Differential test of ACLs: the same requests to Kafka and to the proxy, and the differences."""
