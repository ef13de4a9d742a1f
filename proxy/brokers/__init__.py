"""Brokers of the cluster: discovery, addresses, and the proxy's access to them."""
