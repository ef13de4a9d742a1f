"""Configurations: what an operator may write, what is wrong with it, and wide limits."""

from proxy.config.address_limits import LARGEST
from proxy.worker.connection_limits import ConnectionLimits, Evictable, OpenConnections, Shared

# What an operator may write, and what is wrong with it

# ruff: noqa: E501 - tables: one row, one case

BASE = """\
upstream:
  bootstrap.servers: 127.0.0.1:9092
listeners:
  - name: clients
    address: 0.0.0.0:9094
    routing: gateway
    advertised.host: 127.0.0.1
    broker.ports: 9100-9199
    sasl.enabled.mechanisms: [OAUTHBEARER, SCRAM-SHA-256, SCRAM-SHA-512]
    connections.max.reauth.ms: 3600000
    reauth.enforcement: enforce
    sasl.oauthbearer.jwks.endpoint.url: file:jwks.json
    sasl.oauthbearer.expected.audience: [kafka]
    sasl.oauthbearer.expected.issuer: https://issuer.test
authorizer:
  mode: off
  super.users: [User:admin]
store:
  url: sqlite:state.db
events:
  directory: events
http:
  address: 127.0.0.1:9404
workers: 1
"""
SIDECAR = """\
  - name: sidecar
    address: 127.0.0.1:9300
    routing: sidecar
    sasl.enabled.mechanisms: [SCRAM-SHA-256]
"""
LISTENER = "listeners[0]"
REAUTH = f"{LISTENER}.connections.max.reauth.ms"

# What is replaced in BASE, by what, and the line that says so; DIR is the file's directory.
# fmt: off
MISTAKES = [
    # types and ranges
    ("3600000", "x", f"{REAUTH}: must be a whole number of milliseconds, got 'x'"),
    ("3600000", "'1'", f"{REAUTH}: must be a whole number of milliseconds, got '1'"),
    ("3600000", "true", f"{REAUTH}: must be a whole number of milliseconds, got true"),
    ("3600000", "1.5", f"{REAUTH}: must be a whole number of milliseconds, got 1.5"),
    ("3600000", "1:30", f"{REAUTH}: must be a whole number of milliseconds, got '1:30'"),
    ("3600000", "", f"{REAUTH}: must be a whole number of milliseconds, got nothing"),
    ("3600000", "-1", f"{REAUTH}: must be at least 0, got -1"),
    ("workers: 1", "workers: 0", "workers: must be at least 1, got 0"),
    ("workers: 1", "workers: 5000", "workers: must be at most 1024, got 5000"),
    ("workers: 1", "max.connections.per.ip: -1", "max.connections.per.ip: must be at least 0, got -1"),
    ("workers: 1", "max.connections.per.ip: 0", "max.connections.per.ip: can be 0 only where max.connections.per.ip.overrides lets somebody in"),
    ("workers: 1", "max.connections.per.ip.overrides: 127.0.0.1", "max.connections.per.ip.overrides[0]: must be an IP address and a number such as 127.0.0.1:200, got '127.0.0.1'"),
    ("workers: 1", "max.connections.per.ip.overrides: 'host:5'", "max.connections.per.ip.overrides[0]: must be an IP address and a number such as 127.0.0.1:200, got 'host:5'"),
    ("workers: 1", "max.connections.per.ip.overrides: '10.0.0.1:5,10.0.0.2:-1'", "max.connections.per.ip.overrides[1]: must end in a number from 0 to 2147483647, got '10.0.0.2:-1'"),
    ("workers: 1", "max.connections.per.ip.overrides: '10.0.0.1:5,::ffff:10.0.0.1:6'", "max.connections.per.ip.overrides: names an address twice"),
    ("workers: 1", "workers: 1\nworkers: 2", "line 25: the key 'workers' is given twice"),
    ("http:\n  address", "http: 3 #", "http: must be a mapping, got 3"),
    ("[User:admin]", "User:admin", "authorizer.super.users: must be a list, got 'User:admin'"),
    ("[User:admin]", "[admin]", "authorizer.super.users[0]: must be a principal such as User:alice, got 'admin'"),
    ("[User:admin]", "['User:a;User:b']", "authorizer.super.users[0]: must be one principal, several are a list, got 'User:a;User:b'"),
    ("name: clients", "name: a b", f"{LISTENER}.name: must match ^[A-Za-z0-9_-]{{1,64}}$, got 'a b'"),
    # unknown and missing keys
    ("max.reauth.ms", "max.raeuth.ms", f"{LISTENER}.connections.max.raeuth.ms: unknown key, did you mean connections.max.reauth.ms?"),
    ("connections.max.reauth.ms", "connections_max_reauth_ms", f"{LISTENER}.connections_max_reauth_ms: unknown key, did you mean connections.max.reauth.ms?"),
    ("name: clients", "nam: clients", f"{LISTENER}.nam: unknown key, did you mean name?"),
    ("workers: 1", "quota: {}", "quota: unknown key, did you mean quotas?"),
    ("workers: 1", "quotas: {mode: on}", "quotas.mode: must be 'off', 'audit' or 'enforce', got 'on'"),
    ("workers: 1", "quotas: {quota.window.num: 1}", "quotas.quota.window.num: must be at least 2, got 1"),
    ("workers: 1", "quotas: {client.quota.callback.class: Groups}", "quotas.client.quota.callback.class: must be package.module:Class, got 'Groups'"),
    ("workers: 1", "quotas: {quota.producer.default: 0}", "quotas.quota.producer.default: must be at least 1, got 0"),
    ("  mode: off", "  mode: off\n  allow.everyone: true", "authorizer.allow.everyone: unknown key, did you mean allow.everyone.if.no.acl.found?"),
    ("name: clients", "# no name\n    sasl.server.max.receive.size: 9", f"{LISTENER}.name: is required"),
    # not there yet
    ("upstream:", "upstream:\n  ssl.truststore.location: ca.pem", "upstream.ssl.truststore.location: has no meaning with security.protocol: PLAINTEXT"),
    ("upstream:", "upstream:\n  allowed: 10.0.0.1/8", "upstream.allowed[0]: must be a network, with ports if need be, such as 10.0.0.0/8:9092 or [2001:db8::/32]:9092, got '10.0.0.1/8'"),
    ("upstream:", "upstream:\n  allowed: '10.0.0.0/8:0'", "upstream.allowed[0]: must have ports from 1 to 65535, got '10.0.0.0/8:0'"),
    ("  bootstrap.servers: 127.0.0.1:9092", "  allowed: 10.0.0.0/8", "upstream.bootstrap.servers: is required"),
    ("    routing: gateway\n    advertised.host: 127.0.0.1\n    broker.ports: 9100-9199\n", "    routing: transparent\n", "upstream.allowed: is required with routing: transparent"),
    ("mode: off", "mode: on", "authorizer.mode: must be 'off', 'audit' or 'enforce', got 'on'"),
    ("mode: off", "mode: false", "authorizer.mode: must be 'off', 'audit' or 'enforce', got false"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL", "upstream.sasl.mechanism: is required with security.protocol: SASL_SSL"),
    ("upstream:", "upstream:\n  sasl.mechanism: PLAIN", "upstream.sasl.mechanism: has no meaning with PLAINTEXT"),
    ("upstream:", "upstream:\n  security.protocol: SSL\n  sasl.password: env:P", "upstream.sasl.password: has no meaning with SSL"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL\n  sasl.mechanism: GSSAPI", "upstream.sasl.mechanism: must be 'PLAIN', 'SCRAM-SHA-256', 'SCRAM-SHA-512' or 'OAUTHBEARER', got 'GSSAPI'"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL\n  sasl.mechanism: PLAIN", "upstream.sasl.username: is required for PLAIN"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL\n  sasl.mechanism: SCRAM-SHA-256\n  sasl.username: proxy", "upstream.sasl.password: is required for SCRAM-SHA-256"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL\n  sasl.mechanism: SCRAM-SHA-256\n  sasl.username: proxy\n  sasl.password: secret", "upstream.sasl.password: must be file:PATH or env:NAME, where the secret is; not the secret itself"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL\n  sasl.mechanism: PLAIN\n  sasl.username: proxy\n  sasl.password: env:P\n  sasl.oauthbearer.scope: all", "upstream.sasl.oauthbearer.scope: has no meaning with PLAIN"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL\n  sasl.mechanism: OAUTHBEARER\n  sasl.oauthbearer.token.endpoint.url: file:token\n  sasl.oauthbearer.header.urlencode: false", "upstream.sasl.oauthbearer.header.urlencode: has no meaning with OAUTHBEARER from a file"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL\n  sasl.mechanism: OAUTHBEARER", "upstream.sasl.oauthbearer.token.endpoint.url: is required for OAUTHBEARER"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL\n  sasl.mechanism: OAUTHBEARER\n  sasl.oauthbearer.token.endpoint.url: ftp://idp/", "upstream.sasl.oauthbearer.token.endpoint.url: must be a file:, http: or https: URL"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL\n  sasl.mechanism: OAUTHBEARER\n  sasl.oauthbearer.token.endpoint.url: https://idp/", "upstream.sasl.oauthbearer.client.credentials.client.id: is required for OAUTHBEARER"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL\n  sasl.mechanism: OAUTHBEARER\n  sasl.oauthbearer.token.endpoint.url: file:token\n  sasl.oauthbearer.scope: all", "upstream.sasl.oauthbearer.scope: has no meaning with OAUTHBEARER from a file"),
    ("sqlite:state", "zookeeper://h:1/", "store.url: must be sqlite:PATH or broker:PATH, got 'zookeeper://h:1/.db'"),
    # words
    ("enforcement: enforce", "enforcement: kill", f"{LISTENER}.reauth.enforcement: must be 'observe', 'probe' or 'enforce', got 'kill'"),
    ("SCRAM-SHA-512", "PLAIN", f"{LISTENER}.sasl.enabled.mechanisms[2]: must be 'OAUTHBEARER', 'SCRAM-SHA-256' or 'SCRAM-SHA-512', got 'PLAIN'"),
    ("[OAUTHBEARER, SCRAM-SHA-256, SCRAM-SHA-512]", "[]", f"{LISTENER}.sasl.enabled.mechanisms: must not be empty"),
    (", SCRAM-SHA-256,", ", SCRAM-SHA-512,", f"{LISTENER}.sasl.enabled.mechanisms: names a mechanism twice"),
    # addresses
    ("127.0.0.1:9092", "127.0.0.1", "upstream.bootstrap.servers[0]: must be a host and a port such as 0.0.0.0:9094, got '127.0.0.1'"),
    ("127.0.0.1:9092", "[a:1, 'b:x']", "upstream.bootstrap.servers[1]: must end in a port from 0 to 65535, got 'b:x'"),
    ("127.0.0.1:9092", "0.0.0.0:9092", "upstream.bootstrap.servers[0]: must be an address that can be connected to, got '0.0.0.0:9092'"),
    ("0.0.0.0:9094", "::1:9094", f"{LISTENER}.address: must be a host and a port such as 0.0.0.0:9094, got '::1:9094'"),
    ("host: 127.0.0.1", "host: 0.0.0.0", f"{LISTENER}.advertised.host: must be an address that clients can connect to, got '0.0.0.0'"),
    ("host: 127.0.0.1", "host: a b", f"{LISTENER}.advertised.host: must be a host name or an IP address, got 'a b'"),
    ("9100-9199", "9100", f"{LISTENER}.broker.ports: must be a range of ports such as 9100-9199, got 9100"),
    ("9100-9199", "9199-9100", f"{LISTENER}.broker.ports: must rise from at least 1 to at most 65535, got '9199-9100'"),
    ("9100-9199", "9100-70000", f"{LISTENER}.broker.ports: must rise from at least 1 to at most 65535, got '9100-70000'"),
    # what must fit together
    ("9100-9199", "9094-9199", f"{LISTENER}.broker.ports: must not contain the port of the address, 9094"),
    ("127.0.0.1:9404", "127.0.0.1:9150", "http.address: 127.0.0.1:9150 is taken by listener clients"),
    ("    broker.ports: 9100-9199\n", "", f"{LISTENER}.broker.ports: is required with routing: gateway"),
    ("    advertised.host: 127.0.0.1\n", "", f"{LISTENER}.advertised.host: is required with routing: gateway"),
    ("routing: gateway", "routing: sidecar", f"{LISTENER}.advertised.host: has no meaning with routing: sidecar"),
    ("    sasl.oauthbearer.jwks.endpoint.url: file:jwks.json\n", "", f"{LISTENER}.sasl.oauthbearer.jwks.endpoint.url: is required for OAUTHBEARER"),
    ("    sasl.oauthbearer.expected.audience: [kafka]\n", "", f"{LISTENER}.sasl.oauthbearer.expected.audience: is required for OAUTHBEARER: name the `aud` of the tokens that are meant for this listener; sasl.oauthbearer.allow.unverified.audience: true accepts any"),
    ("    sasl.oauthbearer.expected.issuer: https://issuer.test\n", "", f"{LISTENER}.sasl.oauthbearer.expected.issuer: is required for OAUTHBEARER: name the `iss` of the tokens; sasl.oauthbearer.allow.unverified.issuer: true accepts any"),
    ("expected.audience: [kafka]", "allow.unverified.audience: maybe", f"{LISTENER}.sasl.oauthbearer.allow.unverified.audience: must be true or false, got 'maybe'"),
    ("authorizer:", SIDECAR.replace("sidecar\n", "clients\n", 1) + "authorizer:", "listeners[1].name: clients is the name of another listener"),
    ("authorizer:", SIDECAR.replace("9300", "9120") + "authorizer:", "listeners[1].address: 127.0.0.1:9120 is taken by listener clients"),
    ("connections.max.reauth.ms: 3600000", "connections.max.idle.ms: 100", f"{LISTENER}.connection.failed.authentication.delay.ms: must be less than connections.max.idle.ms, 100"),
    ("connections.max.reauth.ms: 3600000", "sasl.oauthbearer.jwks.max.stale.ms: 1", f"{LISTENER}.sasl.oauthbearer.jwks.max.stale.ms: must be at least sasl.oauthbearer.jwks.endpoint.refresh.ms, 3600000"),
    ("connections.max.reauth.ms: 3600000", "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms: 1", f"{LISTENER}.sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms: must be at least the first wait, 100"),
    # files
    ("file:jwks.json", "file:no.json", f"{LISTENER}.sasl.oauthbearer.jwks.endpoint.url: DIR/no.json cannot be read: No such file or directory"),
    ("file:jwks.json", "file:.", f"{LISTENER}.sasl.oauthbearer.jwks.endpoint.url: DIR cannot be read: no permission, or not a file"),
    ("file:jwks.json", "ftp://h/x", f"{LISTENER}.sasl.oauthbearer.jwks.endpoint.url: must be a file:, http: or https: URL"),
    ("sqlite:state.db", "broker:state.db\n  refresh.ms: 99", "store.refresh.ms: must be at least 100, got 99"),
    ("sqlite:state.db", "broker:state.db\n  refresh.ms: 30001", "store.refresh.ms: must be at most 30000, got 30001"),
    ("sqlite:state.db", "sqlite:no/state.db", "store.url: DIR/no is not a directory"),
    ("sqlite:state.db", "state.db", "store.url: must be sqlite:PATH or broker:PATH, got 'state.db'"),
]

# One item of reauth.overrides or two, and what follows the list's path in the line.
OVERRIDE_MISTAKES = [
    ("{principal: alice, reauth.enforcement: probe}", "[0].principal: must be a principal such as User:alice, got 'alice'"),
    ("{principal.prefix: '', reauth.enforcement: probe}", "[0].principal.prefix: must begin like a principal, such as User:batch-, got ''"),
    ("{principal: 'User:a'}", "[0].reauth.enforcement: give it or connections.max.reauth.ms: nothing is overridden"),
    ("{reauth.enforcement: probe}", "[0].principal: give either principal or principal.prefix"),
    ("{principal: 'User:a', principal.prefix: 'User:', reauth.enforcement: probe}", "[0].principal: give either principal or principal.prefix"),
    ("{principal: 'User:a', reauth.enforcement: probe}, {principal: 'User:a', connections.max.reauth.ms: 1}", "[1]: 'User:a' has an override already"),
]
# fmt: on


# Limits of connections that hardly anything meets


def room_for(most: int) -> OpenConnections[Evictable]:
    """What a listener of the one worker there is counts its connections with."""
    limits = ConnectionLimits(Shared(1, [most]), 0)
    limits.apply(LARGEST, {})
    return OpenConnections(limits, 0)
