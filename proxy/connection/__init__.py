"""Data path, pure: bytes and time in, bytes and commands out."""
