"""Settings of the connection to ZooKeeper, under the names of Kafka's `zookeeper.…`."""

from typing import Annotated, Self

from proxy.config.section import KAFKA_BROKER, OWN, KeyProblemError, setting
from proxy.config.tls import SecurityProtocol, SpokenProtocol, UpstreamTls
from proxy.config.values import Milliseconds, SecretSource, Text
from proxy.declarations import Field, StrictBool, model_validator


class Zookeeper(UpstreamTls):
    """Connection to ZooKeeper, `zookeeper:` only.

    `ssl.…` as for `upstream`, and relative to the other settings here as Kafka's `zookeeper.ssl.…`.
    """

    security_protocol: SpokenProtocol = setting(SecurityProtocol.PLAINTEXT, source=OWN)
    """Security protocol towards ZooKeeper. `SSL` and `SASL_SSL` are Kafka's
    `zookeeper.ssl.client.enable`; with `SASL_…` the proxy logs in by DIGEST-MD5, as with the
    `DigestLoginModule` of ZooKeeper."""
    username: Text | None = setting(None, source=OWN)
    """The user name of the proxy at ZooKeeper; null: none, or that of the certificate. Without
    `SASL_…` it is a user of ZooKeeper's scheme `digest`."""
    password: SecretSource | None = setting(None, source=OWN)
    """The source of the password: `file:PATH` or `env:NAME`. It is read for each connection."""
    session_timeout_ms: Annotated[Milliseconds, Field(ge=1_000, le=600_000)] = setting(
        18_000, source=KAFKA_BROKER, unit="ms"
    )
    """Time without an answer after which a connection counts as lost; also the longest time that
    a request may take; 1000 to 600000."""
    set_acl: StrictBool = setting(False, source=KAFKA_BROKER)
    """true: only the proxy's user, which must be the brokers' own, may change the nodes that it
    creates, and read those of users. As the brokers have it."""

    @model_validator(mode="after")
    def _check_login(self) -> Self:
        if (self.username is None) != (self.password is None):
            missing = "username" if self.username is None else "password"
            raise KeyProblemError(missing, "username and password are given together")
        if self.sasl and self.username is None:
            problem = f"is required with security.protocol: {self.security_protocol}"
            raise KeyProblemError("username", problem)
        has_identity = self.username is not None or self.ssl_keystore_location is not None
        if self.set_acl and not has_identity:
            raise KeyProblemError("set.acl", "needs username, or a certificate of the proxy")
        return self
