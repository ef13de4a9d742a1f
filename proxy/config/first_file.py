"""First configuration file of each routing, with comments (`reauth-proxy config init`)."""

from dataclasses import dataclass
from typing import Final

from proxy.config.listener import Routing, SaslTermination
from proxy.config.security import SecurityProtocol

_UPSTREAM: Final = """\
# Configuration of reauth-proxy. Check it:  reauth-proxy config check FILE
# All settings, including defaults:         reauth-proxy config show FILE

upstream:
{brokers}
  # The connection to brokers: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
  security.protocol: {protocol}
  {authority}ssl.truststore.location: brokers-ca.pem
  {login}sasl.mechanism: {mechanism}
  {login}sasl.username: reauth-proxy
  {login}sasl.password: file:upstream-password

listeners:
  - name: clients
"""
_BROKERS: Final = {
    Routing.GATEWAY: """\
  # Brokers to connect to first; the proxy discovers the others.
  bootstrap.servers: {servers}""",
    Routing.SIDECAR: """\
  # The broker beside this proxy.
  bootstrap.servers: {servers}""",
    Routing.TRANSPARENT: """\
  # Allowed destinations of redirected connections: networks, optionally with ports.
  allowed: 10.0.0.0/8:9092""",
}
_LISTENER: Final = {
    Routing.GATEWAY: """\
    # The bootstrap address of clients.
    address: {address}
    routing: gateway
    # Clients connect to this host; the broker with id N has the first port + N.
    advertised.host: 127.0.0.1
    broker.ports: {ports}
""",
    Routing.SIDECAR: """\
    # The broker's advertised.listeners must name this address, as clients see it.
    address: {address}
    routing: sidecar
""",
    Routing.TRANSPARENT: """\
    # Where deploy/transparent/redirect.sh redirects connections to.
    address: 0.0.0.0:9094
    routing: transparent
""",
}
_CLIENTS: Final = """\
    # Clients' connections: SASL_PLAINTEXT, SASL_SSL, SSL or PLAINTEXT.
    security.protocol: SASL_PLAINTEXT
    # ssl.keystore.location: proxy.pem
"""
_SASL: Final = {
    SaslTermination.BROKER: """\
    # Brokers authenticate clients, with any mechanism that they offer{offered}.
    sasl.termination: broker
""",
    SaslTermination.PROXY: """\
    # proxy: the proxy authenticates clients, with its own users. broker: the brokers do.
    sasl.termination: proxy
    # Users:  reauth-proxy users add alice --mechanism SCRAM-SHA-256 --config FILE
    sasl.enabled.mechanisms: [SCRAM-SHA-256, SCRAM-SHA-512]
    # For OAUTHBEARER, a further mechanism:
    # sasl.oauthbearer.jwks.endpoint.url: https://idp.example/jwks.json
    # sasl.oauthbearer.expected.issuer: https://idp.example/
    # sasl.oauthbearer.expected.audience: kafka
""",
}
_REST: Final = """\
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
  address: {http}
"""


PROXY_MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
"""Mechanisms of the proxy's own login that a first file is written for, the best one first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Cluster and machine that a first file is for."""

    servers: str = "127.0.0.1:9092"
    """The bootstrap servers."""
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    """The security protocol of their listener."""
    mechanisms: tuple[str, ...] = ()
    """The SASL mechanisms that they offer; empty if they have no SASL, or the mechanisms are not
    known."""
    private_authority: bool = False
    """True if the system does not trust the brokers' certificates."""
    address: str = "127.0.0.1:9094"
    """Free address for the listener."""
    ports: str = "9100-9199"
    """Free ports for the brokers, as `broker.ports` has them."""
    http: str = "127.0.0.1:9404"
    """Free address for HTTP."""


def first_file(
    routing: Routing,
    found: Surroundings | None = None,
    termination: SaslTermination = SaslTermination.PROXY,
) -> str:
    """Return a file for a cluster; without `found` it lacks the brokers' addresses.

    If brokers expect a login and the proxy authenticates clients, the file has a login of the proxy
    with the best of `PROXY_MECHANISMS`.
    """
    found = found or Surroundings()
    logs_in = bool(found.mechanisms) and termination is SaslTermination.PROXY
    own = [one for one in PROXY_MECHANISMS if one in found.mechanisms]
    template = _UPSTREAM + _LISTENER[routing] + _CLIENTS + _SASL[termination] + _REST
    return template.replace("{brokers}", _BROKERS[routing]).format(
        servers=found.servers,
        protocol=found.protocol,
        authority="" if found.private_authority else "# ",
        login="" if logs_in else "# ",
        mechanism=own[0] if own else PROXY_MECHANISMS[0],
        offered=f": {', '.join(found.mechanisms)}" if found.mechanisms else "",
        address=found.address,
        ports=found.ports,
        http=found.http,
    )
