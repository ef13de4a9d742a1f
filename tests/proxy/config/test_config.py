import json
import pickle
import re
import sys
from pathlib import Path
from typing import Any

# ruff: noqa: E501 - tables: one row, one case
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config import (
    Address,
    Config,
    Listener,
    PortRange,
    compare,
    from_mapping,
    json_schema,
    load,
)
from proxy.config.document import parse
from proxy.config.section import Section, described, keys, meanings, nested_section
from proxy.errors import ConfigError
from proxy.process.start import Changed, validate_change
from sasl.identity import Identity
from sasl.states import Enforcement
from tests.support.proxy_process import BASE, SIDECAR

LISTENER = "listeners[0]"


REAUTH = f"{LISTENER}.connections.max.reauth.ms"


def _two(one: str, other: str, name: str = "https://b") -> str:
    """Two issuers, with more settings of each."""
    common = "A: kafka, J: file:jwks.json"
    return f"- {{E: https://a, {common}, {one}}}\n- {{E: {name}, {common}, {other}}}"


def with_issuers(issuers: str) -> str:
    """A file whose listener has these, abbreviated."""
    names = {
        "E": "expected.issuer",
        "A": "expected.audience",
        "J": "jwks.endpoint.url",
        "P": "principal.prefix",
        "R": "principal.mapping.rules",
        "G": "groups.claim.name",
    }
    for short, name in names.items():
        issuers = re.sub(rf"([{{ ]){short}: ", rf"\1sasl.oauthbearer.{name}: ", issuers)
    items = "".join(f"      {line}\n" for line in issuers.splitlines())
    return f"""\
upstream: {{bootstrap.servers: 'a:1'}}
listeners:
  - name: clients
    address: 127.0.0.1:9300
    routing: sidecar
    sasl.enabled.mechanisms: [OAUTHBEARER]
    sasl.oauthbearer.issuers:
{items}"""


# Each replacement in BASE, and the reported line; DIR is the file's directory.
# fmt: off
ISSUERS_MISTAKES = [
    ("- {E: https://a, A: kafka}", "[0].sasl.oauthbearer.jwks.endpoint.url: is required for OAUTHBEARER"),
    ("- {E: https://a, J: file:jwks.json}", "[0].sasl.oauthbearer.expected.audience: is required for OAUTHBEARER: set it to the `aud` of this listener's tokens; sasl.oauthbearer.allow.unverified.audience: true accepts any"),
    ("- {A: kafka, J: file:jwks.json}", "[0].sasl.oauthbearer.expected.issuer: is required for OAUTHBEARER: set it to the `iss` of the tokens"),
    ("- {E: https://a, A: kafka, J: file:jwks.json, sasl.oauthbearer.jwks.endpoint.authorization.file: token}", "[0].sasl.oauthbearer.jwks.endpoint.authorization.file: needs an https: URL in sasl.oauthbearer.jwks.endpoint.url, or the token is sent in the clear"),
    ("- {E: https://a, A: kafka, J: file:none.json}", "[0].sasl.oauthbearer.jwks.endpoint.url: DIR/none.json"),
    ('- {E: https://a, A: kafka, J: file:jwks.json, P: "x\\ny"}', "[0].sasl.oauthbearer.principal.prefix: must be text of at most 50 printable characters, got 'x\\ny'"),
    ("- {E: https://a, A: kafka, J: file:jwks.json, P: ' x'}", "[0].sasl.oauthbearer.principal.prefix: must not begin with a blank, got ' x'"),
    ("- {E: https://a, A: kafka, J: file:jwks.json, R: 'RULE:x'}", "[0].sasl.oauthbearer.principal.mapping.rules: has a RULE without its closing slash: 'x'"),
    ("- {E: https://a, A: kafka, J: file:jwks.json, sasl.oauthbearer.clock.skew.seconds: 1}", "[0].sasl.oauthbearer.clock.skew.seconds: unknown key"),
    (_two("P: ''", "P: 'b:'", "https://a"), "[1].sasl.oauthbearer.expected.issuer: 'https://a' is a duplicate"),
    (_two("P: 'a:'", "G: g"), '[1].sasl.oauthbearer.principal.prefix: is required with several issuers, or equal names of two issuers would be the same principal; "" adds no prefix'),
    (_two("G: g", "P: ''"), '[0].sasl.oauthbearer.principal.prefix: is required with several issuers, or equal names of two issuers would be the same principal; "" adds no prefix'),
    (_two("P: ''", "P: ''"), "[1].sasl.oauthbearer.principal.prefix: '' is another issuer's: only issuers with sasl.oauthbearer.principal.mapping.rules may share a prefix"),
    (_two("P: ''", "P: '', R: DEFAULT"), "[1].sasl.oauthbearer.principal.prefix: '' is another issuer's: only issuers with sasl.oauthbearer.principal.mapping.rules may share a prefix"),
    (_two("P: 'a:'", "P: 'a:b:'"), "[1].sasl.oauthbearer.principal.prefix: 'a:b:' overlaps with another issuer's, 'a:'"),
    (_two("P: 'a:b'", "P: 'a:'"), "[1].sasl.oauthbearer.principal.prefix: 'a:' overlaps with another issuer's, 'a:b'"),
]
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
    ("workers: 1", "max.connections.per.ip: 0", "max.connections.per.ip: can be 0 only if max.connections.per.ip.overrides allows connections"),
    ("workers: 1", "max.connections.per.ip.overrides: 127.0.0.1", "max.connections.per.ip.overrides[0]: must be an IP address and a number such as 127.0.0.1:200, got '127.0.0.1'"),
    ("workers: 1", "max.connections.per.ip.overrides: 'host:5'", "max.connections.per.ip.overrides[0]: must be an IP address and a number such as 127.0.0.1:200, got 'host:5'"),
    ("workers: 1", "max.connections.per.ip.overrides: '10.0.0.1:5,10.0.0.2:-1'", "max.connections.per.ip.overrides[1]: must end in a number from 0 to 2147483647, got '10.0.0.2:-1'"),
    ("workers: 1", "max.connections.per.ip.overrides: '10.0.0.1:5,::ffff:10.0.0.1:6'", "max.connections.per.ip.overrides: names an address twice"),
    ("workers: 1", "workers: 1\nworkers: 2", "line 25: the key 'workers' is a duplicate"),
    ("http:\n  address", "http: 3 #", "http: must be a mapping, got 3"),
    ("http:\n", "http:\n  report.url: 'javascript:alert(1)'\n", "http.report.url: must be an http: or https: URL"),
    ("http:\n", "http:\n  report.url: /report\n", "http.report.url: must be an http: or https: URL"),
    ("[User:admin]", "User:admin", "authorizer.super.users: must be a list, got 'User:admin'"),
    ("[User:admin]", "[admin]", "authorizer.super.users[0]: must be a principal such as User:alice, got 'admin'"),
    ("[User:admin]", "['User:a;User:b']", "authorizer.super.users[0]: must be one principal; write several as a list, got 'User:a;User:b'"),
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
    ("upstream:", "upstream:\n  allowed: 10.0.0.1/8", "upstream.allowed[0]: must be a network, optionally with ports, such as 10.0.0.0/8:9092 or [2001:db8::/32]:9092, got '10.0.0.1/8'"),
    ("upstream:", "upstream:\n  allowed: '10.0.0.0/8:0'", "upstream.allowed[0]: must have ports from 1 to 65535, got '10.0.0.0/8:0'"),
    ("  bootstrap.servers: 127.0.0.1:9092", "  allowed: 10.0.0.0/8", "upstream.bootstrap.servers: is required"),
    ("    routing: gateway\n    advertised.host: 127.0.0.1\n    broker.ports: 9100-9199\n", "    routing: transparent\n", "upstream.allowed: is required with routing: transparent"),
    ("mode: off", "mode: on", "authorizer.mode: must be 'off', 'audit' or 'enforce', got 'on'"),
    ("mode: off", "mode: false", "authorizer.mode: must be 'off', 'audit' or 'enforce', got false"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL", "upstream.sasl.mechanism: is required with security.protocol: SASL_SSL"),
    ("upstream:", "upstream:\n  sasl.mechanism: PLAIN", "upstream.sasl.mechanism: has no meaning with PLAINTEXT"),
    ("upstream:", "upstream:\n  security.protocol: SSL\n  sasl.password: env:P", "upstream.sasl.password: has no meaning with SSL"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL\n  sasl.mechanism: GSSAPI", "upstream.sasl.mechanism: must be 'PLAIN', 'SCRAM-SHA-256', 'SCRAM-SHA-512', 'OAUTHBEARER' or 'AWS_MSK_IAM', got 'GSSAPI'"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL\n  sasl.mechanism: PLAIN", "upstream.sasl.username: is required for PLAIN"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL\n  sasl.mechanism: SCRAM-SHA-256\n  sasl.username: proxy", "upstream.sasl.password: is required for SCRAM-SHA-256"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL\n  sasl.mechanism: SCRAM-SHA-256\n  sasl.username: proxy\n  sasl.password: secret", "upstream.sasl.password: must be file:PATH or env:NAME, the source of the secret and not the secret itself"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL\n  sasl.mechanism: PLAIN\n  sasl.username: proxy\n  sasl.password: env:P\n  sasl.oauthbearer.scope: all", "upstream.sasl.oauthbearer.scope: has no meaning with PLAIN"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL\n  sasl.mechanism: OAUTHBEARER\n  sasl.oauthbearer.token.endpoint.url: file:token\n  sasl.oauthbearer.header.urlencode: false", "upstream.sasl.oauthbearer.header.urlencode: has no meaning with OAUTHBEARER from a file"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL\n  sasl.mechanism: OAUTHBEARER", "upstream.sasl.oauthbearer.token.endpoint.url: is required for OAUTHBEARER"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL\n  sasl.mechanism: OAUTHBEARER\n  sasl.oauthbearer.token.endpoint.url: ftp://idp/", "upstream.sasl.oauthbearer.token.endpoint.url: must be a file:, http: or https: URL"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL\n  sasl.mechanism: OAUTHBEARER\n  sasl.oauthbearer.token.endpoint.url: https://idp/", "upstream.sasl.oauthbearer.client.credentials.client.id: is required for OAUTHBEARER"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL\n  sasl.mechanism: OAUTHBEARER\n  sasl.oauthbearer.token.endpoint.url: file:token\n  sasl.oauthbearer.scope: all", "upstream.sasl.oauthbearer.scope: has no meaning with OAUTHBEARER from a file"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL\n  sasl.mechanism: OAUTHBEARER\n  sasl.login.provider: aws", "upstream.sasl.login.provider: must be command, aws-msk-iam, gcp, azure or package.module:Class, got 'aws'"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL\n  sasl.mechanism: OAUTHBEARER\n  sasl.login.provider: command", "upstream.sasl.login.command: is required for sasl.login.provider: command"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL\n  sasl.mechanism: OAUTHBEARER\n  sasl.login.provider: a.b:C\n  sasl.login.command: [x]", "upstream.sasl.login.command: has no meaning with sasl.login.provider: a.b:C"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL\n  sasl.mechanism: OAUTHBEARER\n  sasl.login.provider: a.b:C\n  sasl.oauthbearer.token.endpoint.url: file:token", "upstream.sasl.oauthbearer.token.endpoint.url: has no meaning with sasl.login.provider: a.b:C"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL\n  sasl.mechanism: PLAIN\n  sasl.username: a\n  sasl.password: env:P\n  sasl.login.provider: a.b:C", "upstream.sasl.login.provider: has no meaning with PLAIN"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL\n  sasl.mechanism: AWS_MSK_IAM", "upstream.sasl.login.provider: is required for AWS_MSK_IAM"),
    ("upstream:", "upstream:\n  security.protocol: SASL_SSL\n  sasl.mechanism: AWS_MSK_IAM\n  sasl.login.provider: gcp", "upstream.sasl.login.provider: must be aws-msk-iam for AWS_MSK_IAM"),
    # words
    ("enforcement: enforce", "enforcement: kill", f"{LISTENER}.reauth.enforcement: must be 'observe', 'probe', 'auto' or 'enforce', got 'kill'"),
    ("SCRAM-SHA-512", "GSSAPI", f"{LISTENER}.sasl.enabled.mechanisms[2]: must be 'OAUTHBEARER', 'SCRAM-SHA-256', 'SCRAM-SHA-512' or 'PLAIN', got 'GSSAPI'"),
    ("SCRAM-SHA-512", "PLAIN", f"{LISTENER}.sasl.enabled.mechanisms: PLAIN needs security.protocol: SASL_SSL, or passwords are sent in the clear"),
    ("SCRAM-SHA-512]", "PLAIN]\n    security.protocol: SASL_SSL\n    ssl.keystore.location: k.pem", f"{LISTENER}.sasl.plain.htpasswd.file: is required for PLAIN, or sasl.plain.ldap.url"),
    ("SCRAM-SHA-512]", "PLAIN]\n    security.protocol: SASL_SSL\n    ssl.keystore.location: k.pem\n    sasl.plain.ldap.url: ldaps://h", f"{LISTENER}.sasl.plain.ldap.user.dn: is required with sasl.plain.ldap.url"),
    ("SCRAM-SHA-512]", "PLAIN]\n    security.protocol: SASL_SSL\n    ssl.keystore.location: k.pem\n    sasl.plain.ldap.user.dn: uid=$(user),dc=x", f"{LISTENER}.sasl.plain.htpasswd.file: is required for PLAIN, or sasl.plain.ldap.url"),
    ("SCRAM-SHA-512]", "PLAIN]\n    security.protocol: SASL_SSL\n    ssl.keystore.location: k.pem\n    sasl.plain.ldap.url: ldaps://h\n    sasl.plain.htpasswd.file: users", f"{LISTENER}.sasl.plain.ldap.url: has no meaning with sasl.plain.htpasswd.file"),
    ("SCRAM-SHA-512]", "PLAIN]\n    security.protocol: SASL_SSL\n    ssl.keystore.location: k.pem\n    sasl.plain.ldap.url: ldaps://h\n    sasl.plain.ldap.user.dn: uid=$(user),dc=x\n    sasl.plain.ldap.bind.dn: cn=a", f"{LISTENER}.sasl.plain.ldap.bind.password: sasl.plain.ldap.bind.dn and sasl.plain.ldap.bind.password must be set together"),
    ("SCRAM-SHA-512]", "PLAIN]\n    security.protocol: SASL_SSL\n    ssl.keystore.location: k.pem\n    sasl.plain.ldap.url: ldaps://h\n    sasl.plain.ldap.user.dn: uid=$(user),dc=x\n    sasl.plain.ldap.bind.password: env:A", f"{LISTENER}.sasl.plain.ldap.bind.password: sasl.plain.ldap.bind.dn and sasl.plain.ldap.bind.password must be set together"),
    ("SCRAM-SHA-512]", "PLAIN]\n    security.protocol: SASL_SSL\n    ssl.keystore.location: k.pem\n    sasl.plain.ldap.url: ldapi://h", f"{LISTENER}.sasl.plain.ldap.url: must be an ldap: or ldaps: URL of a host, such as ldaps://ldap.example.com"),
    ("SCRAM-SHA-512]", "PLAIN]\n    security.protocol: SASL_SSL\n    ssl.keystore.location: k.pem\n    sasl.plain.ldap.url: ldaps://h/dc=x?uid", f"{LISTENER}.sasl.plain.ldap.url: must be an ldap: or ldaps: URL of a host, such as ldaps://ldap.example.com"),
    ("SCRAM-SHA-512]", "PLAIN]\n    security.protocol: SASL_SSL\n    ssl.keystore.location: k.pem\n    sasl.plain.ldap.url: ldaps://u:p@h", f"{LISTENER}.sasl.plain.ldap.url: must not contain a user name or password"),
    ("SCRAM-SHA-512]", "PLAIN]\n    security.protocol: SASL_SSL\n    ssl.keystore.location: k.pem\n    sasl.plain.ldap.user.dn: cn=x$(user),dc=x", f"{LISTENER}.sasl.plain.ldap.user.dn: must begin with an attribute and $(user), such as uid=$(user),ou=people,dc=example,dc=com, got 'cn=x$(user),dc=x'"),
    ("SCRAM-SHA-512]", "SCRAM-SHA-512]\n    sasl.plain.ldap.url: ldaps://h", f"{LISTENER}.sasl.plain.ldap.url: has no meaning without PLAIN"),
    ("SCRAM-SHA-512]", "SCRAM-SHA-512]\n    sasl.plain.htpasswd.file: users", f"{LISTENER}.sasl.plain.htpasswd.file: has no meaning without PLAIN"),
    ("[OAUTHBEARER, SCRAM-SHA-256, SCRAM-SHA-512]", "[]", f"{LISTENER}.sasl.enabled.mechanisms: must not be empty"),
    (", SCRAM-SHA-256,", ", SCRAM-SHA-512,", f"{LISTENER}.sasl.enabled.mechanisms: names a mechanism twice"),
    # addresses
    ("127.0.0.1:9092", "127.0.0.1", "upstream.bootstrap.servers[0]: must be a host and a port such as 0.0.0.0:9094, got '127.0.0.1'"),
    ("127.0.0.1:9092", "[a:1, 'b:x']", "upstream.bootstrap.servers[1]: must end in a port from 0 to 65535, got 'b:x'"),
    ("127.0.0.1:9092", "0.0.0.0:9092", "upstream.bootstrap.servers[0]: must be an address that can be connected to, got '0.0.0.0:9092'"),
    ("0.0.0.0:9094", "::1:9094", f"{LISTENER}.address: must be a host and a port such as 0.0.0.0:9094, got '::1:9094'"),
    ("host: 127.0.0.1", "host: 0.0.0.0", f"{LISTENER}.advertised.host: must be an address that clients can connect to, got '0.0.0.0'"),
    ("host: 127.0.0.1", "host: a b", f"{LISTENER}.advertised.host: must be a host name or an IP address, got 'a b'"),
    ("9100-9199", "9100", f"{LISTENER}.broker.ports: must be a range of ports such as 9100-9199, or a map of broker ids to ports, got 9100"),
    ("9100-9199", "{}", f"{LISTENER}.broker.ports: must list the port of at least one broker"),
    ("9100-9199", "{1: 9094}", f"{LISTENER}.broker.ports: must not contain the port of the address, 9094"),
    ("9100-9199", "{-1: 9101}", f"{LISTENER}.broker.ports: must have broker ids as keys, got '-1'"),
    ("9100-9199", "{2147483648: 9101}", f"{LISTENER}.broker.ports: must have broker ids as keys, got '2147483648'"),
    ("9100-9199", "{1: 65536}", f"{LISTENER}.broker.ports: must be ports from 1 to 65535, got 65536"),
    ("9100-9199", "{1: true}", f"{LISTENER}.broker.ports: must be ports from 1 to 65535, got true"),
    ("9100-9199", "{1: 9101, 2: 9101}", f"{LISTENER}.broker.ports: must have one port for each id, got 2: 9101 again"),
    ("9100-9199", "{1: 9101, '01': 9102}", f"{LISTENER}.broker.ports: must have one port for each id, got 1: 9102 again"),
    ("9100-9199", "9199-9100", f"{LISTENER}.broker.ports: must be ports from 1 to 65535 in rising order, got '9199-9100'"),
    ("9100-9199", "9100-70000", f"{LISTENER}.broker.ports: must be ports from 1 to 65535 in rising order, got '9100-70000'"),
    ("ports: 9100-9199", "hosts: broker.kafka.example", f"{LISTENER}.broker.hosts: must be a host name with $(id), such as broker-$(id).example.com, got 'broker.kafka.example'"),
    ("ports: 9100-9199", "hosts: 10.0.0.$(id)", f"{LISTENER}.broker.hosts: must be a host name with $(id), such as broker-$(id).example.com, got '10.0.0.$(id)'"),
    ("ports: 9100-9199", "hosts: b$(id).x$(id)", f"{LISTENER}.broker.hosts: must be a host name with $(id), such as broker-$(id).example.com, got 'b$(id).x$(id)'"),
    ("ports: 9100-9199", "hosts: b$(id).kafka:70000", f"{LISTENER}.broker.hosts: must end in a port from 1 to 65535, got 'b$(id).kafka:70000'"),
    # what must fit together
    ("ports: 9100-9199", "hosts: b$(id).kafka", f"{LISTENER}.broker.hosts: has no meaning with security.protocol: SASL_PLAINTEXT"),
    ("ports: 9100-9199", "hosts: b$(id).kafka\n    security.protocol: SASL_SSL\n    ssl.keystore.location: k.pem", f"{LISTENER}.advertised.host: must be a host name with broker.hosts, and not that of a broker, got '127.0.0.1'"),
    ("host: 127.0.0.1\n    broker.ports: 9100-9199", "host: b7.Kafka\n    broker.hosts: b$(id).kafka\n    security.protocol: SASL_SSL\n    ssl.keystore.location: k.pem", f"{LISTENER}.advertised.host: must be a host name with broker.hosts, and not that of a broker, got 'b7.Kafka'"),
    ("9100-9199", "9100-9199\n    broker.hosts: b$(id).kafka\n    security.protocol: SASL_SSL\n    ssl.keystore.location: k.pem", f"{LISTENER}.broker.hosts: cannot be combined with broker.ports"),
    ("9100-9199", "9100-9199\n    security.protocol: SASL_SSL\n    ssl.keystore.location: k.pem\n    ssl.keystores: [{ssl.keystore.location: k.pem}]", f"{LISTENER}.ssl.keystores: has no meaning without broker.hosts"),
    ("9100-9199", "9094-9199", f"{LISTENER}.broker.ports: must not contain the port of the address, 9094"),
    ("127.0.0.1:9404", "127.0.0.1:9150", "http.address: 127.0.0.1:9150 is taken by listener clients"),
    ("    broker.ports: 9100-9199\n", "", f"{LISTENER}.broker.ports: is required with routing: gateway"),
    ("    advertised.host: 127.0.0.1\n", "", f"{LISTENER}.advertised.host: is required with routing: gateway"),
    ("routing: gateway", "routing: sidecar", f"{LISTENER}.advertised.host: has no meaning with routing: sidecar"),
    ("    sasl.oauthbearer.jwks.endpoint.url: file:jwks.json\n", "", f"{LISTENER}.sasl.oauthbearer.jwks.endpoint.url: is required for OAUTHBEARER"),
    ("file:jwks.json", "http://idp/keys\n    sasl.oauthbearer.jwks.endpoint.authorization.file: token", f"{LISTENER}.sasl.oauthbearer.jwks.endpoint.authorization.file: needs an https: URL in sasl.oauthbearer.jwks.endpoint.url, or the token is sent in the clear"),
    ("    sasl.oauthbearer.expected.audience: [kafka]\n", "", f"{LISTENER}.sasl.oauthbearer.expected.audience: is required for OAUTHBEARER: set it to the `aud` of this listener's tokens; sasl.oauthbearer.allow.unverified.audience: true accepts any"),
    ("    sasl.oauthbearer.expected.issuer: https://issuer.test\n", "", f"{LISTENER}.sasl.oauthbearer.expected.issuer: is required for OAUTHBEARER: set it to the `iss` of the tokens; sasl.oauthbearer.allow.unverified.issuer: true accepts any"),
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
    ("sqlite:state.db", "'broker:'", "store.url: must be sqlite:PATH or broker:PATH, got 'broker:'"),
    ("sqlite:state.db", "broker://h:1/x", "store.url: must be sqlite:PATH or broker:PATH, got 'broker://h:1/x'"),
    ("sqlite:state.db", "Broker:x", "store.url: must be sqlite:PATH or broker:PATH, got 'Broker:x'"),
    ("sqlite:state.db", "brokers:x", "store.url: must be sqlite:PATH or broker:PATH, got 'brokers:x'"),
]


# One item of reauth.overrides or two, and what follows the list's path in the line.
OVERRIDE_MISTAKES = [
    ("{principal: alice, reauth.enforcement: probe}", "[0].principal: must be a principal such as User:alice, got 'alice'"),
    ("{principal.prefix: '', reauth.enforcement: probe}", "[0].principal.prefix: must begin like a principal, such as User:batch-, got ''"),
    ("{principal: 'User:a'}", "[0].reauth.enforcement: set it or connections.max.reauth.ms: the override changes nothing"),
    ("{reauth.enforcement: probe}", "[0].principal: set either principal or principal.prefix"),
    ("{principal: 'User:a', principal.prefix: 'User:', reauth.enforcement: probe}", "[0].principal: set either principal or principal.prefix"),
    ("{principal: 'User:a', reauth.enforcement: probe}, {principal: 'User:a', connections.max.reauth.ms: 1}", "[1]: 'User:a' already has an override"),
]




@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "jwks.json").write_text('{"keys": []}')
    return tmp_path


def loaded(directory: Path, text: str) -> Config:
    file = directory / "config.yaml"
    file.write_text(text)
    return load(file)


def refusal(directory: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(directory, text)
    return str(caught.value)


def terms(listener: Listener, principal: str, mechanism: str) -> tuple[Enforcement, int]:
    found = listener.enforcement_policy().terms_for(Identity(principal), mechanism)
    return found.enforcement, found.max_reauth_ms


def changed(*replacements: tuple[str, str], text: str = BASE) -> str:
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def test_the_file_of_the_design_is_read(directory: Path) -> None:
    config = loaded(directory, BASE)
    (listener,) = config.listeners

    assert config.upstream.bootstrap_servers == (Address("127.0.0.1", 9092),)
    assert listener.address == Address("0.0.0.0", 9094)  # noqa: S104 - a value, not bound
    assert listener.broker_ports == PortRange(9100, 9199)
    assert listener.sasl_oauthbearer_expected_audience == ("kafka",)
    assert terms(listener, "User:a", "OAUTHBEARER") == (Enforcement.ENFORCE, 3_600_000)
    assert config.authorizer.mode == "off"
    assert config.authorizer.super_users == ("User:admin",)


def test_a_setting_needs_its_extra(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else loads it."""
    for name in ("users", "k.pem"):
        (directory / name).touch()
    monkeypatch.setitem(sys.modules, "bcrypt", None)
    loaded(directory, BASE)
    settings = "sasl.plain.htpasswd.file: users\n    security.protocol: SASL_SSL"
    plain = f"PLAIN]\n    {settings}\n    ssl.keystore.location: k.pem"
    with pytest.raises(ConfigError, match=r"file: needs bcrypt, the extra htpasswd: .* 'bcrypt"):
        loaded(directory, changed(("SCRAM-SHA-512]", plain)))


def test_relative_paths_are_relative_to_the_file(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy is started from anywhere."""
    (directory / "elsewhere").mkdir()
    monkeypatch.chdir(directory / "elsewhere")
    (directory / "config.yaml").write_text(BASE)

    config = load(Path("..") / "config.yaml")

    jwks = config.listeners[0].jwks_source()
    assert isinstance(jwks, Path)
    assert jwks.resolve() == directory / "jwks.json"
    assert config.store.path().resolve() == directory / "state.db"
    assert config.events.directory is not None
    assert config.events.directory.resolve() == directory / "events"


def test_defaults_are_relative_to_the_file_too(directory: Path) -> None:
    config = loaded(directory, changed(("store:\n  url: sqlite:state.db\n", "")))
    assert config.store.path() == directory / "state.db"


def test_absolute_paths_stay(directory: Path) -> None:
    absolute = directory / "jw ks.json"
    absolute.write_text("{}")
    text = changed(
        ("file:jwks.json", absolute.as_uri()), ("sqlite:state.db", f"sqlite:{directory}/x.db")
    )
    config = loaded(directory, text)
    assert config.listeners[0].jwks_source() == absolute
    assert config.store.path() == directory / "x.db"


def test_kafkas_defaults_are_kafkas(directory: Path) -> None:
    """The numbers of Kafka 4.1's documentation."""
    config = loaded(directory, "upstream: {bootstrap.servers: 'b:1'}\nlisteners:\n" + SIDECAR)
    (listener,) = config.listeners
    assert (config.max_connections_per_ip, config.address_limits()) == (2**31 - 1, {})
    assert listener.connections_max_reauth_ms == 0
    assert listener.connections_max_idle_ms == 600_000
    assert listener.sasl_server_max_receive_size == 524_288
    assert listener.socket_request_max_bytes == 104_857_600
    assert listener.connection_failed_authentication_delay_ms == 100
    assert listener.sasl_oauthbearer_clock_skew_seconds == 30
    assert listener.sasl_oauthbearer_jwks_endpoint_refresh_ms == 3_600_000
    assert listener.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms == 100
    assert listener.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms == 10_000
    assert listener.sasl_oauthbearer_scope_claim_name == "scope"
    assert listener.sasl_oauthbearer_sub_claim_name == "sub"


@pytest.mark.parametrize(("old", "new", "problem"), MISTAKES)
def test_a_mistake_is_one_line_with_the_keys_path(
    directory: Path, old: str, new: str, problem: str
) -> None:
    assert refusal(directory, changed((old, new))) == problem.replace("DIR", str(directory))


@pytest.mark.parametrize(("override", "problem"), OVERRIDE_MISTAKES)
def test_overrides_that_say_nothing_or_too_much(
    directory: Path, override: str, problem: str
) -> None:
    text = changed(("authorizer:", f"    reauth.overrides: [{override}]\nauthorizer:"))
    assert refusal(directory, text) == f"{LISTENER}.reauth.overrides{problem}"


@pytest.mark.parametrize(("issuers", "problem"), ISSUERS_MISTAKES)
def test_issuers_that_are_not_told_apart(directory: Path, issuers: str, problem: str) -> None:
    expected = f"{LISTENER}.sasl.oauthbearer.issuers{problem}".replace("DIR", str(directory))
    assert refusal(directory, with_issuers(issuers)).startswith(expected)


def test_issuers_are_checked_before_their_mechanism_is_enabled(directory: Path) -> None:
    """A reload compares them by name."""
    text = with_issuers("- {A: kafka, J: file:jwks.json}").replace("OAUTHBEARER", "SCRAM-SHA-256")
    key = f"{LISTENER}.sasl.oauthbearer.issuers[0].sasl.oauthbearer.expected.issuer"
    assert refusal(directory, text).startswith(f"{key}: is required")


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("expected.issuer", "https://a", "set it for each issuer"),
        ("jwks.endpoint.url", "file:jwks.json", "set it for each issuer"),
        ("groups.claim.name", "groups", "set it for each issuer"),
        ("allow.unverified.issuer", "true", "`iss` selects the issuer"),
    ],
)
def test_what_each_issuer_has_is_not_given_for_all(
    directory: Path, key: str, value: str, why: str
) -> None:
    text = with_issuers(_two("P: ''", "P: 'b:'")) + f"    sasl.oauthbearer.{key}: {value}\n"
    problem = f"has no meaning with sasl.oauthbearer.issuers: {why}"
    assert refusal(directory, text) == f"{LISTENER}.sasl.oauthbearer.{key}: {problem}"


@pytest.mark.parametrize(
    ("one", "other"),
    [("P: ''", "P: 'b:'"), ("P: 'a:'", "P: 'b:'"), ("P: '', R: DEFAULT", "P: '', R: DEFAULT")],
)
def test_issuers_whose_names_differ_or_are_made_by_rules(
    directory: Path, one: str, other: str
) -> None:
    (listener,) = loaded(directory, with_issuers(_two(one, other))).listeners
    assert list(listener.issuers_by_name()) == ["https://a", "https://b"]


def test_a_reload_changes_issuers_but_not_which_there_are(directory: Path) -> None:
    before = loaded(directory, with_issuers(_two("P: ''", "P: 'b:'")))
    place = "listeners[clients].sasl.oauthbearer.issuers"
    issuer_a = "- {E: https://a, A: kafka, J: file:jwks.json, P: 'c:', G: roles}"
    fewer = _reload(directory, before, before, with_issuers(issuer_a))
    of_a = (
        f"{place}[https://a].sasl.oauthbearer.groups.claim.name",
        f"{place}[https://a].sasl.oauthbearer.principal.prefix",
    )
    assert (fewer.needs_restart, fewer.reloadable) == ((), (*of_a, f"{place}[https://b]"))
    in_effect = _in_effect(fewer)
    again = _reload(directory, before, in_effect, with_issuers(_two("P: ''", "P: 'b:'")))
    assert again.reloadable == fewer.reloadable, "its keys are still read"
    assert _in_effect(again) == before
    other = _two("P: 'c:', G: roles", "P: ''", "https://c")
    renamed = _reload(directory, before, before, with_issuers(other))
    assert renamed.needs_restart == (*of_a, f"{place}[https://b]", f"{place}[https://c]")
    assert renamed.reloadable == ()
    assert _in_effect(renamed) == before


_ONE = """\
    sasl.oauthbearer.expected.issuer: https://a
    sasl.oauthbearer.expected.audience: kafka
    sasl.oauthbearer.jwks.endpoint.url: file:jwks.json
"""


@pytest.mark.parametrize(
    ("mechanism", "tokens"), [("OAUTHBEARER", _ONE), ("SCRAM-SHA-256", _ONE), ("SCRAM-SHA-256", "")]
)
def test_tokens_stay_as_they_were_until_the_restart(
    directory: Path, mechanism: str, tokens: str
) -> None:
    """Without issuers all would be refused, and without an audience any accepted."""
    several = with_issuers(_two("P: ''", "P: 'b:'"))
    before = loaded(directory, several)
    head, _, _ = several.partition("    sasl.oauthbearer.issuers:")
    text = head.replace("OAUTHBEARER", mechanism) + tokens
    changed = _reload(directory, before, before, text)
    assert changed.reloadable == ()
    issuers = _in_effect(changed).listeners[0].issuers_by_name()
    assert issuers == before.listeners[0].issuers_by_name()


def _reload(directory: Path, start: Config, before: Config, text: str) -> Changed:
    path = directory / "reloaded.yaml"
    path.write_text(text)
    return validate_change(path, pickle.dumps(start), pickle.dumps(before))


def _in_effect(changed: Changed) -> Config:
    config: Config = pickle.loads(changed.config)  # noqa: S301 - made by the test
    return config


def test_overrides_and_mechanisms_reach_the_policy(directory: Path) -> None:
    config = loaded(
        directory,
        changed(
            (
                "    reauth.enforcement: enforce\n",
                "    reauth.enforcement: observe\n"
                "    oauthbearer.connections.max.reauth.ms: 1\n"
                "    scram-sha-256.connections.max.reauth.ms: 2\n"
                "    reauth.overrides:\n"
                "      - {principal: 'User:alice', reauth.enforcement: enforce}\n"
                "      - {principal.prefix: 'User:al', connections.max.reauth.ms: 5}\n",
            )
        ),
    )
    (listener,) = config.listeners
    assert terms(listener, "User:alice", "OAUTHBEARER") == (Enforcement.ENFORCE, 5)
    assert terms(listener, "User:bob", "OAUTHBEARER") == (Enforcement.OBSERVE, 1)
    assert terms(listener, "User:bob", "SCRAM-SHA-256") == (Enforcement.OBSERVE, 2)
    assert terms(listener, "User:bob", "SCRAM-SHA-512") == (Enforcement.OBSERVE, 3_600_000)


def test_a_sidecar_has_one_broker(directory: Path) -> None:
    text = "upstream: {bootstrap.servers: ['a:1', 'b:2']}\nlisteners:\n" + SIDECAR
    expected = "upstream.bootstrap.servers: must be one broker"
    assert refusal(directory, text).startswith(expected)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("# nothing\n", "is empty"),
        ("- 1", "must be a mapping of settings, got a list"),
        ("a: 1\na: 2", "line 2: the key 'a' is a duplicate"),
        ("a: &x [1]\nb: *x", "line 2: aliases (*) are not supported"),
        ("a: !!python/object/apply:os.system [id]", "line 1: tags (!) are not supported"),
        ("a: !!int x", "line 1: tags (!) are not supported"),
        ("!!set {a}", "line 1: tags (!) are not supported"),
        ("1: a", "1: unknown key"),
        ("null: a", "line 1: a key must be text"),
        ("? [a]\n: b", "line 1: a key must be text"),
        ("a: [1", "line 1: is not YAML: expected ',' or ']', but got '<stream end>'"),
        ("a: 1\n---\nb: 2", "line 2: is not YAML: but found another document"),
        ("a: b\0", "is not YAML: it contains a character that YAML does not allow"),
        ("[" * 100_000, "line 1: is nested too deeply"),
        ("a: '" + "x" * 1_048_576 + "'", "is larger than 1048576 bytes"),
    ],
)
def test_yaml_that_is_not_a_configuration(directory: Path, text: str, problem: str) -> None:
    """Duplicate keys would hide a setting; aliases, tags and nesting are ways to attack."""
    assert refusal(directory, text) == problem


def test_text_that_is_not_utf_8(directory: Path) -> None:
    file = directory / "config.yaml"
    file.write_bytes(b"a: \xff")
    with pytest.raises(ConfigError, match=r"^is not UTF-8 text$"):
        load(file)


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read(directory: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"^cannot be read: "):
        load(directory / name)


def test_words_and_numbers_are_those_of_yaml_1_2() -> None:
    """YAML 1.1 reads `off` as false, 010 as eight and 1:30 as ninety."""
    assert parse(b"{a: off, b: 010, c: 1:30, d: yes, e: true, f: ~, g: 1_000, h: 2020-01-01}") == {
        "a": "off",
        "b": 10,
        "c": "1:30",
        "d": "yes",
        "e": True,
        "f": None,
        "g": "1_000",
        "h": "2020-01-01",
    }


@pytest.mark.parametrize(
    "url", ["https://user:hunter2@idp/jwks", "https://user:hunter2@[bad/jwks", "//a:hunter2@h"]
)
def test_a_password_in_a_url_is_refused_and_not_repeated(directory: Path, url: str) -> None:
    """Error lines end in logs."""
    assert "hunter2" not in refusal(directory, changed(("file:jwks.json", f"'{url}'")))


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
VALUES = parse(BASE.encode())
paths = st.sampled_from(
    [("listeners", 0, key) for key in VALUES["listeners"][0]]
    + [(name, key) for name in ("upstream", "store", "events", "http") for key in VALUES[name]]
    + [("upstream",), ("listeners",), ("listeners", 0), ("workers",), ("store",)]
)


@given(path=paths, value=values)
def test_any_value_is_accepted_or_one_printable_line(path: tuple[Any, ...], value: object) -> None:
    """No value, however odd, is a traceback, or a line that steers a terminal."""
    mapping = parse(BASE.encode())
    parent: Any = mapping
    for part in path[:-1]:
        parent = parent[part]
    parent[path[-1]] = value
    try:
        from_mapping(mapping, base_dir=Path("/nowhere"))
        problem = ""
    except ConfigError as error:
        problem = str(error)
    assert problem.isprintable()
    assert len(problem) < 400


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:1", Address("127.0.0.1", 1)),
        ("[::1]:65535", Address("::1", 65535)),
        ("kafka-0.kafka.svc.cluster.local:9092", Address("kafka-0.kafka.svc.cluster.local", 9092)),
        ("localhost:0", Address("localhost", 0)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    ["", ":1", "a:", "a:-1", "a:+1", "a:65536", "a:\uff11", "a:1:2", "[a]:1", "a b:1", "a/b:1", 5],
)
def test_not_addresses(text: object) -> None:
    with pytest.raises(ValueError, match=r"^must "):
        Address.parse(text)


def test_broker_ports() -> None:
    ports = PortRange.parse("9100-9102")
    assert [ports.port_of(broker_id) for broker_id in (-1, 0, 2, 3)] == [None, 9100, 9102, None]
    assert list(ports) == [9100, 9101, 9102]
    assert (9102 in ports, 9103 in ports, len(ports), str(ports)) == (True, False, 3, "9100-9102")


def test_broker_ports_by_id(directory: Path) -> None:
    text = BASE.replace("9100-9199", "{1001: 9101, '1003': 9100}")
    (listener,) = (one for one in loaded(directory, text).listeners if one.broker_ports)
    ports = listener.broker_ports
    assert ports is not None
    assert [ports.port_of(broker_id) for broker_id in (1001, 1002, 1003)] == [9101, None, 9100]
    assert list(ports) == [9101, 9100]
    assert (9101 in ports, 9102 in ports, len(ports)) == (True, False, 2)
    assert str(ports) == "1001: 9101, 1003: 9100"
    assert listener.model_dump(by_alias=True)["broker.ports"] == {1001: 9101, 1003: 9100}


def test_the_same_file_has_no_changes(directory: Path) -> None:
    changes = compare(loaded(directory, BASE), loaded(directory, BASE))
    assert (changes.reloadable, changes.needs_restart) == ((), ())


def test_changes_are_told_apart(directory: Path) -> None:
    old = loaded(directory, BASE)
    new = loaded(
        directory,
        changed(
            ("connections.max.reauth.ms: 3600000", "connections.max.reauth.ms: 5"),
            ("enforcement: enforce", "enforcement: probe"),
            ("[kafka]", "[kafka, other]"),
            ("[User:admin]", "[]"),
            ("9100-9199", "9100-9150"),
            ("directory: events", "directory: other"),
            ("workers: 1", "workers: 2"),
            ("authorizer:", SIDECAR + "authorizer:"),
        ),
    )
    changes = compare(old, new)
    assert sorted(changes.reloadable) == [
        "authorizer.super.users",
        "listeners[clients].connections.max.reauth.ms",
        "listeners[clients].reauth.enforcement",
        "listeners[clients].sasl.oauthbearer.expected.audience",
    ]
    assert sorted(changes.needs_restart) == [
        "events.directory",
        "listeners[clients].broker.ports",
        "listeners[sidecar]",
        "workers",
    ]


def test_the_order_of_listeners_means_nothing(directory: Path) -> None:
    base = parse(changed(("authorizer:", SIDECAR + "authorizer:")).encode())
    turned = {**base, "listeners": base["listeners"][::-1]}
    changes = compare(
        from_mapping(base, base_dir=directory), from_mapping(turned, base_dir=directory)
    )
    assert (changes.reloadable, changes.needs_restart) == ((), ())


def _sections(section: type[Section]) -> set[type[Section]]:
    found = {section}
    for _, _, field in keys(section):
        if nested := nested_section(field.annotation):
            found |= _sections(nested)
    return found


def test_every_setting_is_documented() -> None:
    """The reference is made from the model."""
    for section in _sections(Config):
        assert section.__doc__
        for key, name, field in keys(section):
            assert described(field), f"{section.__name__} {key}"
            assert meanings(section).get(name) or nested_section(field.annotation), key
            assert re.fullmatch(r"[a-z0-9.-]+", key)


def test_the_schema_names_every_key() -> None:
    text = json.dumps(json_schema())
    for section in _sections(Config):
        for key, _, _ in keys(section):
            assert f'"{key}"' in text
    assert json_schema()["additionalProperties"] is False


def test_lists_may_be_written_as_kafka_writes_them(directory: Path) -> None:
    """An operator pastes `bootstrap.servers` from a client's properties."""
    config = loaded(directory, changed(("127.0.0.1:9092", "one:9092, two:9093")))
    assert config.upstream.bootstrap_servers == (Address("one", 9092), Address("two", 9093))


@pytest.mark.parametrize(
    ("written", "limits"),
    [
        ("''", {}),
        ("'127.0.0.1:200, 10.0.0.7:0'", {"127.0.0.1": 200, "10.0.0.7": 0}),
        ("['[2001:DB8::1]:5', '::1:6']", {"2001:db8::1": 5, "::1": 6}),
        ("'::ffff:10.0.0.1:6'", {"10.0.0.1": 6}),
    ],
)
def test_limits_of_addresses(directory: Path, written: str, limits: dict[str, int]) -> None:
    overrides = f"max.connections.per.ip.overrides: {written}"
    assert loaded(directory, changed(("workers: 1", overrides))).address_limits() == limits
