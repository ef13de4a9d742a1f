"""Which broker a client means, and where it is: sidecar and gateway."""
