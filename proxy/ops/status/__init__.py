"""Status for operators: open sessions, their principals, and recent incidents."""
