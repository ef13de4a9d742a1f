"""SASL state machines, pure: bytes in, bytes out, time as an argument."""
