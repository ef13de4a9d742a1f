"""Principals of clients without SASL: certificates, and rules for their names."""
