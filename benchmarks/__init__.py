"""Instruments that measure the proxy's speed and memory; see README.md beside this file."""
