"""The tests that need a real Apache Kafka, and their harness: started here, ended here.

`java` finds the class path, `cluster` runs brokers, `proxied` starts the proxy, `tokens` mints JSON
web tokens, `wire_client` speaks frames over a socket, `clients` sets up three client libraries,
`traffic` shows what is lost, doubled or out of order, and `sasl_programs` holds the programs whose
answers are compared between Kafka's own SASL listener and the proxy.
"""
