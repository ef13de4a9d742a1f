"""Kubernetes: the admission webhook that adds the sidecar to pods."""
