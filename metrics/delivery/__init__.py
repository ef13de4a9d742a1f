"""Delivery of the event log: its files are the spool, and a position file records the progress.

Rules:

- Every line arrives at least once. The position is written only after the sink has confirmed the
  lines before it, so a crash may cause duplicates but never loses a line.
- Only whole lines are delivered.
- Lines are data: their content is never acted upon, and unreadable lines are set aside.
"""
