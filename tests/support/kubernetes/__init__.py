"""A Kubernetes cluster of one node on this machine, in namespaces of its own."""
