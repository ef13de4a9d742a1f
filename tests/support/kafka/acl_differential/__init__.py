"""The same questions to Kafka and to the proxy, by users with the same ACLs, and what differs."""
