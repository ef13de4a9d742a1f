"""Quota callbacks that are ready to use, and to learn from."""
