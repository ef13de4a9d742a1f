"""Requests answered from the store: ACLs, quotas, SCRAM users."""
