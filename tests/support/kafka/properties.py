"""Broker properties of test clusters."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.support.sasl import AUDIENCE, ISSUER

PLAINTEXT = "PLAINTEXT"
CONTROLLER = "CONTROLLER"
#: Used only by a sidecar, whose address it advertises.
BEHIND = "BEHIND"


def common(nodes: int) -> dict[str, str]:
    """Properties of all nodes: small, fast, with replicated internal topics."""
    replicas = str(min(nodes, 3))
    return {
        "controller.listener.names": CONTROLLER,
        "inter.broker.listener.name": PLAINTEXT,
        "auto.create.topics.enable": "false",
        "num.network.threads": "2",
        "num.io.threads": "4",
        "log.cleaner.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.min.heartbeat.interval.ms": "300",
        "group.consumer.heartbeat.interval.ms": "300",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": "1",
    }


def of_node(
    node_id: int,
    ports: Mapping[str, int],
    *,
    is_controller: bool,
    sidecar_port: int | None,
    host: str,
) -> dict[str, str]:
    """A node's roles and listeners, all on `host`."""
    client = {name: port for name, port in ports.items() if name != CONTROLLER}
    bound = ports if is_controller else client
    advertised = client if sidecar_port is None else {**client, BEHIND: sidecar_port}
    protocols = dict.fromkeys(ports, "SASL_PLAINTEXT")
    protocols |= dict.fromkeys((PLAINTEXT, CONTROLLER, BEHIND), "PLAINTEXT")
    return {
        "process.roles": "broker,controller" if is_controller else "broker",
        "node.id": str(node_id),
        "listeners": _listed(host, bound),
        "advertised.listeners": _listed(host, advertised),
        "listener.security.protocol.map": ",".join(f"{k}:{v}" for k, v in protocols.items()),
    }


def _listed(host: str, ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://{host}:{port}" for name, port in ports.items())


def sasl(
    listeners: Mapping[str, int],
    jwks: Path | None,
    plain_users: Mapping[str, str] = MappingProxyType({}),
    kerberos_jaas: str = "",
) -> dict[str, str]:
    """SCRAM on every SASL listener, and OAUTHBEARER if there is a JWKS file.

    And PLAIN if there are `plain_users` (passwords by name), and GSSAPI with
    the brokers' login to Kerberos.
    """
    modules = {"SCRAM-SHA-256": "scram.Scram", "SCRAM-SHA-512": "scram.Scram"}
    modules |= {"OAUTHBEARER": "oauthbearer.OAuthBearer"} if jwks else {}
    modules |= {"PLAIN": "plain.Plain"} if plain_users else {}
    passwords = "".join(f' user_{name}="{password}"' for name, password in plain_users.items())
    logins = {
        mechanism: f"org.apache.kafka.common.security.{module}LoginModule required"
        f"{passwords if mechanism == 'PLAIN' else ''};"
        for mechanism, module in modules.items()
    }
    logins |= {"GSSAPI": kerberos_jaas} if kerberos_jaas else {}
    properties = {"sasl.enabled.mechanisms": ",".join(logins)}
    for name, max_reauth_ms in listeners.items():
        prefix = f"listener.name.{name.lower()}"
        for mechanism, jaas in logins.items():
            own = f"{prefix}.{mechanism.lower()}"
            properties[f"{own}.sasl.jaas.config"] = jaas
            properties[f"{own}.connections.max.reauth.ms"] = str(max_reauth_ms)
        if jwks:
            handler = "oauthbearer.OAuthBearerValidatorCallbackHandler"
            properties[f"{prefix}.oauthbearer.sasl.server.callback.handler.class"] = (
                f"org.apache.kafka.common.security.{handler}"
            )
    return properties | (_token_properties(jwks) if jwks else {})


def _token_properties(jwks: Path) -> dict[str, str]:
    # Kafka 4.1.0 verifies nothing with its default validator, nor with a listener's prefix here.
    validator = "org.apache.kafka.common.security.oauthbearer.BrokerJwtValidator"
    return {
        "sasl.oauthbearer.jwt.validator.class": validator,
        "sasl.oauthbearer.jwks.endpoint.url": jwks.as_uri(),
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
    }
