"""Settings of librdkafka, from those of the proxy or from a Kafka client's properties file.

Certificates and secrets are passed in memory: they are on no command line and in no log.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from proxy.admin.properties import (
    Login,
    OAuthBearer,
    Plain,
    Scram,
    client_settings,
    read_properties,
)
from proxy.admin.tls import client_material, tls_settings
from proxy.brokers.access import token_source
from proxy.brokers.token_source import TokenUnavailable
from proxy.config.security import UpstreamSasl, UpstreamTls
from proxy.delivery.topic import Settings
from proxy.errors import ConfigError
from proxy.net.tls_contexts import openssl_name
from proxy.net.tls_material import Material, read
from sasl.credentials import ScramMechanism
from sasl.token_cache import expiry_claim

UNKNOWN_EXPIRY_SECONDS: Final = 300.0
"""Seconds after which a token whose expiry is not known is read again."""


def of_configuration(servers: str, settings: UpstreamSasl) -> Settings:
    """Return the settings of the configuration, with its present secrets. Raises ConfigError and
    TokenUnavailable."""
    made: dict[str, Any] = {"bootstrap.servers": servers}
    made["security.protocol"] = str(settings.security_protocol)
    try:
        if settings.tls:
            made |= _tls(settings, read(settings, time.time()))
        if settings.sasl:
            made |= _sasl(_login(settings, servers))
    except OSError as error:
        problem = f"{error.filename} cannot be read: {error.strerror}"
        raise ConfigError("", problem) from None
    except ValueError as error:  # about a secret, which the text does not repeat
        raise ConfigError("", str(error)) from None
    return made


def of_options(servers: str | None, file: Path | None) -> Settings:
    """Return the settings of `--bootstrap-server` and `--command-config`. Raises ConfigError."""
    if file is not None:
        return of_properties(file, servers)
    if servers is None:
        raise ConfigError("", "--bootstrap-server or --command-config is required")
    return {"bootstrap.servers": servers}


def of_properties(file: Path, servers: str | None) -> Settings:
    """Return the settings in a file of properties; `servers` override those in the file.

    Raises ConfigError.
    """
    properties = read_properties(file)
    found = servers or properties.get("bootstrap.servers")
    if not found:
        raise ConfigError("bootstrap.servers", "is required, or --bootstrap-server")
    protocol = properties.get("security.protocol", "PLAINTEXT").strip().upper()
    login = client_settings(properties).login
    made: dict[str, Any] = {"bootstrap.servers": found, "security.protocol": protocol}
    if protocol.endswith("SSL"):
        made |= _tls(tls_settings(properties), client_material(properties))
    if login is not None:
        made |= _sasl(login)
    return made


def _tls(settings: UpstreamTls, material: Material) -> dict[str, Any]:
    made: dict[str, Any] = {
        "ssl.endpoint.identification.algorithm": settings.ssl_endpoint_identification_algorithm
        or "none"
    }
    if settings.ssl_cipher_suites:
        made["ssl.cipher.suites"] = ":".join(map(openssl_name, settings.ssl_cipher_suites))
    if material.trusted:
        made["ssl.ca.pem"] = material.trusted.decode("ascii", "replace")
    else:
        made["ssl.ca.location"] = "probe"
    if material.chain:
        made["ssl.certificate.pem"] = material.chain.decode("ascii", "replace")
        made["ssl.key.pem"] = (material.key or material.chain).decode("ascii", "replace")
        if material.password is not None:
            made["ssl.key.password"] = material.password
    return made


def _login(settings: UpstreamSasl, servers: str) -> Login:
    """Return the configured identity. Raises OSError and ValueError."""
    mechanism, username = settings.sasl_mechanism, settings.sasl_username
    if mechanism == "OAUTHBEARER":
        return OAuthBearer(token=settings.token_file() or _fetched(settings, servers))
    assert username is not None
    assert settings.sasl_password is not None
    password = settings.sasl_password.read()
    if mechanism == "PLAIN":
        return Plain(username=username, password=password)
    return Scram(username=username, password=password, mechanism=ScramMechanism(mechanism or ""))


def _fetched(settings: UpstreamSasl, servers: str) -> Callable[[], str]:
    """Return a function that requests a token, which librdkafka does before one expires."""

    def fetch() -> str:
        return asyncio.run(token_source(settings, servers).current())

    return fetch


def _sasl(login: Login) -> Mapping[str, Any]:
    match login:
        case Plain():
            mechanism = "PLAIN"
        case Scram():
            mechanism = login.mechanism.value
        case OAuthBearer():
            return {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": _token_callback(login)}
        case _:
            raise AssertionError(login)
    return {
        "sasl.mechanism": mechanism,
        "sasl.username": login.username,
        "sasl.password": login.password,
    }


def _token_callback(login: OAuthBearer) -> Callable[[str], tuple[str, float]]:
    """Return librdkafka's callback. Raises ConfigError and TokenUnavailable if no token can be
    read: librdkafka would wait for one without an explanation.
    """
    first = [login.current()]

    def token(_config: str) -> tuple[str, float]:
        try:
            current = first.pop() if first else login.current()
        except (ConfigError, TokenUnavailable) as error:
            raise RuntimeError(str(error)) from None  # librdkafka asks again
        return current, expiry_claim(current) or time.time() + UNKNOWN_EXPIRY_SECONDS

    return token
