"""Brokers of the cluster: which there are, how they are reached, and as whom."""
