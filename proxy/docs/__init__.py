"""Generators of pages and tables of docs/ from declarations in the code."""
