"""What tests on a real Apache Kafka share: it is started here, and ended here.

`java` finds the class path, `cluster` runs brokers, `proxy` starts the proxy, `tokens` mints JSON
web tokens, `wire_client` speaks frames over a socket, `clients` sets up three client libraries,
`traffic` shows what is lost, doubled or out of order; `sasl_differential` and `acl_differential`
hold what is asked of Kafka and of the proxy, to compare their answers.
"""
