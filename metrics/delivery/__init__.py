"""Delivery of the event log: its files are the spool, and a position beside them says how far.

Laws:

- Everything that is in a file arrives at least once. A position is written after what it says was
  confirmed, so that after a crash something is delivered twice, and nothing never.
- Only whole lines are delivered.
- Lines are data: nothing in them is followed, and what cannot be read as a line is set aside.
"""
