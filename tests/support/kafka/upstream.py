"""Brokers that require SASL from the proxy, and the logins to them."""

import base64
import json
import urllib.parse
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.support.certificates import Authority
from tests.support.cloud import ARN
from tests.support.http_service import HttpService
from tests.support.kafka import properties
from tests.support.kafka.clients import OAUTHBEARER
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.properties import BEHIND, CONTROLLER, PLAINTEXT
from tests.support.processes import free_ports
from tests.support.proxy_process import sidecar_config
from tests.support.sasl import Issuer

# A broker whose listeners require SASL, and the proxy's logins

GATE = "gate"
"""The proxy's user at the brokers."""
PASSWORD = "gate-secret,=1"
WRONG_PASSWORD = "wrong-secret-2"
CHANGING = "changing"
"""Like `GATE`, but with a changing password."""
CLIENT_ID, CLIENT_SECRET, SCOPE = "gate client", "client:secret&3", "kafka brokers"

SHORT, BUSY, LITTLE, SECURE, IAM = "SHORT", "BUSY", "LITTLE", "SECURE", "IAM"
SHORT_MS = 2_000
BUSY_MS = 12_000
"""Lifetime under traffic: logins begin before 95 %, which leaves time for a busy machine."""
LISTENERS: Mapping[str, int] = {
    SHORT: SHORT_MS,
    BUSY: BUSY_MS,
    LITTLE: 3_600_000,
    SECURE: 3_600_000,
    IAM: SHORT_MS,
}
EXPIRED_CHANNEL = "Disconnecting expired channel"
"""Text in a broker's log when it closes an expired connection."""


def sasl_properties(listeners: Mapping[str, int], jwks: Path) -> dict[str, str]:
    """All mechanisms; only the proxy and the brokers have rights."""
    return {
        **properties.sasl(listeners, jwks, {GATE: PASSWORD}),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{GATE};User:{CHANGING};User:{ARN}",
    }


def sasl_cluster(jwks: Path, files: Path) -> KafkaCluster:
    """One node; `LITTLE` does not support PLAIN, `SECURE` uses TLS with `files`, and `IAM` accepts
    what Amazon MSK does."""
    protocols = dict.fromkeys((PLAINTEXT, CONTROLLER), "PLAINTEXT")
    protocols |= dict.fromkeys((SHORT, BUSY, LITTLE, BEHIND, IAM), "SASL_PLAINTEXT")
    protocols |= {SECURE: "SASL_SSL"}
    authority = Authority()
    authority.write(files)
    (files / "broker.pem").write_bytes(authority.issue("broker").pem)
    return KafkaCluster(
        jwks=jwks,
        sasl_listeners=LISTENERS,
        sidecar_port=free_ports(1)[0],
        jvm_options=("-Dauthorizer.log.level=info",),
        classes=("MskValidator",),
        properties={
            **sasl_properties({**LISTENERS, BEHIND: 3_600_000}, jwks),
            "delegation.token.secret.key": "secret-of-all-brokers",
            f"listener.name.{LITTLE.lower()}.sasl.enabled.mechanisms": "SCRAM-SHA-256,OAUTHBEARER",
            f"listener.name.{IAM.lower()}.oauthbearer.sasl.server.callback.handler.class": (
                "MskValidator"
            ),
            "listener.security.protocol.map": ",".join(f"{k}:{v}" for k, v in protocols.items()),
            f"listener.name.{SECURE.lower()}.ssl.keystore.type": "PEM",
            f"listener.name.{SECURE.lower()}.ssl.keystore.location": str(files / "broker.pem"),
        },
    )


def add_proxys_users(cluster: KafkaCluster) -> None:
    """Add the proxy's SCRAM users."""
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        cluster.add_scram_user(GATE, PASSWORD, mechanism)


# --- the proxy's logins


def by_password(
    mechanism: str, directory: Path, *, name: str = GATE, password: str = PASSWORD
) -> dict[str, Any]:
    """Keys of `upstream`; the password is in `directory / "password"`."""
    (directory / "password").write_text(password)
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": name,
        "sasl.password": f"file:{directory / 'password'}",
    }


def by_token_file(directory: Path, token: str) -> dict[str, Any]:
    """Keys of `upstream`; the token is in `directory / "token"`."""
    file = directory / "token"
    file.write_text(token)
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": OAUTHBEARER,
        "sasl.oauthbearer.token.endpoint.url": file.as_uri(),
    }


def by_client_credentials(directory: Path, endpoint: "TokenEndpoint") -> dict[str, Any]:
    """Keys of `upstream`; the secret is in `directory / "client-secret"`."""
    file = directory / "client-secret"
    file.write_text(CLIENT_SECRET)
    prefix = "sasl.oauthbearer"
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": OAUTHBEARER,
        f"{prefix}.token.endpoint.url": endpoint.url,
        f"{prefix}.client.credentials.client.id": CLIENT_ID,
        f"{prefix}.client.credentials.client.secret": f"file:{file}",
        f"{prefix}.scope": SCOPE,
    }


def sidecar_of(
    cluster: KafkaCluster, listener: str, jwks: Path, login: Mapping[str, Any]
) -> dict[str, Any]:
    """A configuration with one listener, LONG, in front of the broker's `listener`."""
    port = cluster.sidecar_port if listener == BEHIND else None
    upstream = str(cluster.address(listener=listener))
    config = sidecar_config(upstream, jwks, listeners={"LONG": 3_600_000}, port=port)
    config["upstream"] |= login
    return config


class TokenEndpoint(HttpService):
    """A token endpoint with client credentials (RFC 6749 section 4.4) that records requests.

    It also serves the issuer's keys at `jwks_url`.
    """

    def __init__(self, issuer: Issuer, *, certificate: Path | None = None) -> None:
        super().__init__(self._answer, certificate=certificate)
        self._issuer = issuer
        self.given: list[str] = []
        self.refused: list[str] = []
        base = f"http{'s' * (certificate is not None)}://{self.address}"
        self.url, self.jwks_url = f"{base}/oauth2/token", f"{base}/jwks.json"

    def _answer(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        if request.command == "GET":
            return 200, json.dumps(self._issuer.jwks()).encode()
        form = urllib.parse.parse_qs(body.decode())
        status, answer = self.answer(request.headers.get("Authorization", ""), form)
        return status, json.dumps(answer).encode()

    def answer(self, authorization: str, form: Mapping[str, list[str]]) -> tuple[int, Any]:
        """Return HTTP status and JSON."""
        wanted = {"grant_type": ["client_credentials"], "scope": [SCOPE]}
        if {key: form.get(key) for key in wanted} != wanted or not _is_client(authorization):
            self.refused.append(f"{authorization} {form}")
            return 401, {"error": "invalid_client", "error_description": f"not {CLIENT_SECRET}"}
        token = self._issuer.mint(GATE)
        self.given.append(token)
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": 3600}


def _is_client(authorization: str) -> bool:
    """Basic, with both parts form-encoded first (RFC 6749 section 2.3.1)."""
    scheme, _, credentials = authorization.partition(" ")
    name, _, secret = base64.b64decode(credentials).decode().partition(":")
    unquoted = urllib.parse.unquote_plus(name), urllib.parse.unquote_plus(secret)
    return scheme.lower() == "basic" and unquoted == (CLIENT_ID, CLIENT_SECRET)
