"""The harness of the tests that need a real Apache Kafka: started here, ended here.

`java` finds the class path, `cluster` runs brokers, `tokens` mints JSON web tokens,
`wire_client` speaks frames over a socket, `sasl_programs` holds the programs whose answers are
compared between Kafka's own SASL listener and the proxy, `proxied` starts the proxy.
"""
