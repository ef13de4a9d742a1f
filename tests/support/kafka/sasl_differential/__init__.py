"""The same conversations with Kafka and with the proxy, and what differs."""
