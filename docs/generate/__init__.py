"""Generators of the reference pages."""
