"""First configuration file of each routing, with comments (`reauth-proxy config init`)."""

from typing import Final

from proxy.config.listener import Routing

_UPSTREAM: Final = """\
# Configuration of reauth-proxy. Check it:  reauth-proxy config check FILE
# All settings, including defaults:         reauth-proxy config show FILE

upstream:
{brokers}
  # The connection to brokers: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
  security.protocol: PLAINTEXT
  # ssl.truststore.location: brokers-ca.pem
  # sasl.mechanism: SCRAM-SHA-512
  # sasl.username: reauth-proxy
  # sasl.password: file:upstream-password

listeners:
  - name: clients
"""
_BROKERS: Final = {
    Routing.GATEWAY: """\
  # Brokers to connect to first; the proxy discovers the others.
  bootstrap.servers: 127.0.0.1:9092""",
    Routing.SIDECAR: """\
  # The broker beside this proxy.
  bootstrap.servers: 127.0.0.1:9092""",
    Routing.TRANSPARENT: """\
  # Allowed destinations of redirected connections: networks, optionally with ports.
  allowed: 10.0.0.0/8:9092""",
}
_LISTENER: Final = {
    Routing.GATEWAY: """\
    # The bootstrap address of clients.
    address: 127.0.0.1:9094
    routing: gateway
    # Clients connect to this host; the broker with id N has the first port + N.
    advertised.host: 127.0.0.1
    broker.ports: 9100-9199
""",
    Routing.SIDECAR: """\
    # The broker's advertised.listeners must name this address, as clients see it.
    address: 127.0.0.1:9094
    routing: sidecar
""",
    Routing.TRANSPARENT: """\
    # Where deploy/transparent/redirect.sh redirects connections to.
    address: 0.0.0.0:9094
    routing: transparent
""",
}
_REST: Final = """\
    # Clients' connections: SASL_PLAINTEXT, SASL_SSL, SSL or PLAINTEXT.
    security.protocol: SASL_PLAINTEXT
    # ssl.keystore.location: proxy.pem
    # Users:  reauth-proxy users add alice --mechanism SCRAM-SHA-256 --config FILE
    sasl.enabled.mechanisms: [SCRAM-SHA-256]
    # For OAUTHBEARER, a further mechanism:
    # sasl.oauthbearer.jwks.endpoint.url: https://idp.example/jwks.json
    # sasl.oauthbearer.expected.issuer: https://idp.example/
    # sasl.oauthbearer.expected.audience: kafka
    # The longest session without re-authentication.
    connections.max.reauth.ms: 3600000
    # observe: no lifetime is announced and no client disconnected; sessions are recorded.
    # probe: the lifetime is announced; clients that enforce would disconnect are recorded.
    # enforce: expired sessions end as in KIP-368.
    reauth.enforcement: observe
    # reauth.overrides:
    #   - principal: User:alice
    #     reauth.enforcement: enforce

authorizer:
  # off: no ACLs. audit: requests that ACLs would deny are recorded. enforce: ACLs apply.
  mode: off
  # super.users: [User:admin]

quotas:
  # off: no quotas. audit: excess is recorded, not throttled. enforce: quotas apply.
  mode: off

store:
  # Users, ACLs and quotas; created if it does not exist.
  url: sqlite:state.db

events:
  # The history of sessions, for reauth-proxy report.
  directory: events

http:
  # Metrics, health and the status page, without authentication.
  address: 127.0.0.1:9404
"""


def first_file(routing: Routing) -> str:
    """Return a file that is complete except for the brokers' addresses."""
    return _UPSTREAM.format(brokers=_BROKERS[routing]) + _LISTENER[routing] + _REST
