"""Generators of pages and tables of docs/, from what the code declares."""
