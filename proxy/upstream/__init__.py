"""How brokers are reached: identity, tokens, requests of the proxy's own."""
