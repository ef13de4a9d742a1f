"""Settings of three client libraries for the proxy, by user.

Users of SCRAM have the password `NAME-secret`; users of OAUTHBEARER get a fresh token each time.
"""

import socket
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka.admin

from tests.support.kafka import java
from tests.support.proxy_process import SUPER_USER, ProxyProcess
from tests.support.sasl import Issuer

with warnings.catch_warnings():
    # It reads its schemas in a way that Python 3.11 deprecates and 3.13 takes back.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.net.inet import KafkaNetSocket
    from kafka.net.sasl.oauth import AbstractTokenProvider

#: librdkafka's administration, whose types are incomplete.
confluent_admin: Any = confluent_kafka.admin

OAUTHBEARER = "OAUTHBEARER"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)

_library_connect = KafkaNetSocket.sock_connect


async def _connect(self: Any, net: Any, sock: socket.socket, *more: Any, **named: Any) -> Any:
    """Close the socket if there is no connection.

    kafka-python forgets it when a client is closed that is still connecting, as happens on a busy
    machine; the warning then fails whichever test collects the garbage.
    """
    try:
        return await _library_connect(self, net, sock, *more, **named)
    except BaseException:
        sock.close()
        raise


KafkaNetSocket.sock_connect = _connect

_JAAS = "org.apache.kafka.common.security"


def password_of(name: str) -> str:
    """Every test user's password."""
    return f"{name}-secret"


def by_password(name: str, mechanism: str = "SCRAM-SHA-256") -> dict[str, str]:
    """Properties of a Java client that logs in with the password of `name`."""
    login = f'username="{name}" password="{password_of(name)}"'
    module = f"{_JAAS}.{'plain.Plain' if mechanism == 'PLAIN' else 'scram.Scram'}LoginModule"
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": f"{module} required {login};"}


def write_properties(file: Path, settings: Mapping[str, str]) -> Path:
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return file


def acl_binding(name: str, principal: str, operation: str, kind: str = "TOPIC") -> Any:
    """An ACL for librdkafka's administration that allows an operation on one resource."""
    return confluent_admin.AclBinding(
        confluent_admin.ResourceType[kind],
        name,
        confluent_admin.ResourcePatternType.LITERAL,
        principal,
        "*",
        confluent_admin.AclOperation[operation],
        confluent_admin.AclPermissionType.ALLOW,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user and the mechanism of its logins."""

    name: str
    mechanism: str
    issuer: Issuer
    token_lifetime: float = 3600

    def token(self) -> str:
        """Return a new token."""
        return self.issuer.mint(self.name, self.token_lifetime)

    def confluent(self, bootstrap: str, **more: Any) -> dict[str, Any]:
        """librdkafka's configuration; keyword `a_b` is the property `a.b`."""
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": self.mechanism,
            "reconnect.backoff.max.ms": 500,
            "socket.connection.setup.timeout.ms": 120_000,
            **{key.replace("_", "."): value for key, value in more.items()},
        }
        if self.mechanism == OAUTHBEARER:
            return {**settings, "oauth_cb": self._oauth_callback}
        login = {"sasl.username": self.name, "sasl.password": password_of(self.name)}
        return {**settings, **login}

    def python(self, bootstrap: str, **more: Any) -> dict[str, Any]:
        """kafka-python's keyword arguments."""
        settings: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": self.mechanism,
            "bootstrap_timeout_ms": 120_000,
            "request_timeout_ms": 100_000,
            **more,
        }
        if self.mechanism == OAUTHBEARER:
            return {**settings, "sasl_oauth_token_provider": _Tokens(self)}
        login = {"sasl_plain_username": self.name, "sasl_plain_password": password_of(self.name)}
        return {**settings, **login}

    def java(self, directory: Path, **more: str) -> "JavaClient":
        """A properties file for Java's clients, and the options of their JVM."""
        settings = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": self.mechanism,
            **{key.replace("_", "."): value for key, value in more.items()},
        }
        options: tuple[str, ...] = ()
        if self.mechanism == OAUTHBEARER:
            file = directory / f"{self.name}.jwt"
            file.write_text(self.token())
            options = (f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={file.as_uri()}",)
            settings |= _java_oauth(file)
        else:
            settings |= by_password(self.name, self.mechanism)
        path = directory / f"{self.name}-{self.mechanism}.properties"
        return JavaClient(properties=write_properties(path, settings), jvm_options=options)

    def _oauth_callback(self, _config: str) -> tuple[str, float]:
        return self.token(), time.time() + self.token_lifetime


def _java_oauth(token_file: Path) -> Mapping[str, str]:
    bearer = f"{_JAAS}.oauthbearer"
    return {
        "sasl.jaas.config": f"{bearer}.OAuthBearerLoginModule required;",
        "sasl.login.callback.handler.class": f"{bearer}.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.jwt.retriever.class": f"{bearer}.FileJwtRetriever",
        "sasl.oauthbearer.token.endpoint.url": token_file.as_uri(),
    }


class _Tokens(AbstractTokenProvider):  # type: ignore[misc]  # the library is untyped
    def __init__(self, user: User) -> None:
        self._user = user

    def token(self) -> str:
        """Called by kafka-python for each authentication."""
        return self._user.token()


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaClient:
    """Runs Java programs and tools as a user."""

    properties: Path
    jvm_options: tuple[str, ...]

    def run(
        self, program: str, *arguments: str, timeout_seconds: float = java.RUN_SECONDS
    ) -> java.Finished:
        """Runs a program of `java/` whose second argument is the properties file."""
        bootstrap, *others = arguments
        return java.run_program(
            program,
            [bootstrap, str(self.properties), *others],
            jvm_options=self.jvm_options,
            timeout_seconds=timeout_seconds,
        )

    def run_tool(self, tool: str, bootstrap: str, *arguments: str) -> java.Finished:
        """Runs a tool of the distribution that takes `--command-config`."""
        where = ["--bootstrap-server", bootstrap, "--command-config", str(self.properties)]
        return java.run_tool(tool, [*where, *arguments])


@dataclass(frozen=True, kw_only=True)
class SslUser(User):
    """A user that connects over TLS and trusts an authority."""

    ca: Path

    def confluent(self, bootstrap: str, **more: Any) -> dict[str, Any]:
        """librdkafka's configuration."""
        mine = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(self.ca)}
        return super().confluent(bootstrap, **more) | mine

    def python(self, bootstrap: str, **more: Any) -> dict[str, Any]:
        """kafka-python's keyword arguments."""
        mine = {"security_protocol": "SASL_SSL", "ssl_cafile": str(self.ca)}
        return super().python(bootstrap, **more) | mine

    def java(self, directory: Path, **more: str) -> Any:
        """A properties file for Java's clients."""
        return super().java(
            directory,
            security_protocol="SASL_SSL",
            ssl_truststore_type="PEM",
            ssl_truststore_location=str(self.ca),
            **more,
        )


def user(issuer: Issuer, mechanism: str, name: str = "carol", **more: Any) -> User:
    """A user that `add_users` adds."""
    return User(name=name, mechanism=mechanism, issuer=issuer, **more)


def add_users(proxy: ProxyProcess) -> None:
    """Carol with every mechanism of SCRAM, and the super user."""
    for mechanism in MECHANISMS:
        if mechanism != OAUTHBEARER:
            proxy.add_user("carol", password_of("carol"), mechanism)
    proxy.add_user(SUPER_USER, password_of(SUPER_USER), "SCRAM-SHA-256")


@dataclass(frozen=True, kw_only=True)
class Certified:
    """A client with a certificate."""

    files: Path
    name: str

    @property
    def _mine(self) -> str:
        return str(self.files / f"{self.name}.pem")

    def confluent(self, bootstrap: str, **more: Any) -> dict[str, Any]:
        """librdkafka's configuration."""
        return {
            "bootstrap.servers": bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.files / "ca.pem"),
            "ssl.certificate.location": self._mine,
            "ssl.key.location": self._mine,
            **{key.replace("_", "."): value for key, value in more.items()},
        }
