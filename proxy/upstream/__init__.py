"""Access to brokers: identity, tokens, requests of the proxy's own."""
