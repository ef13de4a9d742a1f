"""Access to brokers: identity, tokens, the proxy's own requests."""
