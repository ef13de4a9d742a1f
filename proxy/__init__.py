"""The wire, and what may pass."""
