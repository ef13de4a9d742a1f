"""Complete quota callbacks, to copy: docs/quotas.md."""
