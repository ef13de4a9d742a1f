"""Support of the tests on a real Apache Kafka."""
