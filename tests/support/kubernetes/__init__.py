"""A Kubernetes cluster with one node on this machine, in its own namespaces."""
