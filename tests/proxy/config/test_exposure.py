"""The start reports secrets of the proxy that the network could read."""

from pathlib import Path
from typing import Any

import pytest

from proxy.config import from_mapping
from proxy.config.exposure import exposures
from tests.support.settings import configured

PASSWORD = {"sasl.username": "proxy", "sasl.password": "env:PROXY_PASSWORD"}
PLAIN = PASSWORD | {"sasl.mechanism": "PLAIN"}
SCRAM = PASSWORD | {"sasl.mechanism": "SCRAM-SHA-512"}
URL = "sasl.oauthbearer.token.endpoint.url"
TOKEN = {"sasl.mechanism": "OAUTHBEARER", URL: "file:/var/run/token"}
ASKED = {
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.client.credentials.client.id": "proxy",
    "sasl.oauthbearer.client.credentials.client.secret": "env:PROXY_SECRET",
}
CLEAR = {"security.protocol": "SASL_PLAINTEXT"}
HIDDEN = {"security.protocol": "SASL_SSL"}
REMOTE = {"bootstrap.servers": "localhost:9092,kafka.example.com:9092"}
HERE = {"bootstrap.servers": "127.0.0.1:9092,[::1]:9092,LOCALHOST:9092"}
AMONG = {"allowed": "127.0.0.0/8,10.0.0.0/8:9092"}
SASL = {"sasl.enabled.mechanisms": ["SCRAM-SHA-256"]}
GATEWAY = {"routing": "gateway", "advertised.host": "proxy", "broker.ports": "9100-9199"}
CLEAR_TO = "goes to brokers in the clear, such as"


def reported(upstream: dict[str, Any], mode: str = "enforce") -> tuple[str, ...]:
    routing = {"routing": "transparent"} if "allowed" in upstream else GATEWAY
    listener = {"name": "clients", "address": "0.0.0.0:9094", **routing, **SASL}
    authorizer = {"mode": mode}
    mapping = {"upstream": upstream, "listeners": [listener], "authorizer": authorizer}
    return exposures(from_mapping(mapping, base_dir=Path("/etc/reauth-proxy")))


@pytest.mark.parametrize(
    ("upstream", "line"),
    [
        (CLEAR | PLAIN | REMOTE, f"password {CLEAR_TO} kafka.example.com:9092"),
        (CLEAR | TOKEN | REMOTE, f"token {CLEAR_TO} kafka.example.com:9092"),
        (CLEAR | PLAIN | AMONG, f"password {CLEAR_TO} 10.0.0.0/8"),
        (
            HIDDEN | ASKED | REMOTE | {URL: "http://idp.example.com:8080/token?key=hidden"},
            "client secret goes to idp.example.com in the clear",
        ),
    ],
)
def test_a_secret_that_the_network_can_read_is_told(upstream: dict[str, Any], line: str) -> None:
    """It may be a network that nobody else is on."""
    (found,) = reported(upstream)
    assert found.startswith(f"the proxy's {line} (upstream.s")
    assert "hidden" not in found


KAFKA, IDP = {"expected.audience": "kafka"}, {"expected.issuer": "https://idp"}
ANY_SERVICE, ANY_ISSUER = ({f"allow.unverified.{of}": True} for of in ("audience", "issuer"))


@pytest.mark.parametrize(
    ("claims", "what"),
    [
        (KAFKA | IDP, []),
        (KAFKA | ANY_ISSUER, ["of any issuer"]),
        (ANY_SERVICE | IDP, ["for any service"]),
        (ANY_SERVICE | ANY_ISSUER, ["for any service", "of any issuer"]),
        (ANY_SERVICE | ANY_ISSUER | KAFKA | IDP, []),  # what is expected is verified all the same
    ],
)
def test_a_listener_that_verifies_too_little_is_warned_of(
    claims: dict[str, Any], what: list[str]
) -> None:
    listener = {
        "sasl.enabled.mechanisms": ["OAUTHBEARER"],
        "sasl.oauthbearer.jwks.endpoint.url": "https://idp/keys",
        **{f"sasl.oauthbearer.{key}": value for key, value in claims.items()},
    }
    lines = exposures(configured(Path("/etc/reauth-proxy"), listener))
    assert [line.partition(" (")[0] for line in lines] == [
        f"listener clients accepts tokens {one}" for one in what
    ]


def test_a_listener_on_which_clients_choose_their_address_is_warned_of() -> None:
    listener = {
        **SASL,
        "proxy.protocol": "required",
        "proxy.protocol.trusted": ["10.0.0.0/8", "::/0"],
    }
    assert exposures(configured(Path("/etc/reauth-proxy"), listener)) == (
        "listener clients: every client can claim any address (proxy.protocol.trusted: ::/0)",
    )


def test_each_secret_is_told_by_itself() -> None:
    lines = reported(CLEAR | ASKED | REMOTE | {URL: "http://idp/token"})
    assert [line.split()[2] for line in lines] == ["token", "client"]


@pytest.mark.parametrize(
    "upstream",
    [
        REMOTE,
        HIDDEN | PLAIN | REMOTE,
        HIDDEN | TOKEN | REMOTE,
        CLEAR | SCRAM | REMOTE,  # it proves the password and does not send it
        CLEAR | PLAIN | HERE,
        CLEAR | TOKEN | {"allowed": "127.0.0.1"},
        HIDDEN | ASKED | REMOTE | {URL: "https://idp.example.com/token"},
        HIDDEN | ASKED | REMOTE | {URL: "http://127.0.0.1:8080/token"},
    ],
)
def test_nothing_is_told_of_what_is_hidden_or_stays_here(upstream: dict[str, Any]) -> None:
    """A warning that is always there is read by nobody."""
    assert reported(upstream) == ()


@pytest.mark.parametrize("mode", ["off", "audit"])
@pytest.mark.parametrize(
    ("upstream", "cause"),
    [
        (HIDDEN | SCRAM | REMOTE, "upstream.sasl.mechanism: SCRAM-SHA-512"),
        (
            {"security.protocol": "SSL", "ssl.keystore.location": "proxy.pem"} | REMOTE,
            "upstream.ssl.keystore.location",
        ),
    ],
)
def test_rights_that_every_client_is_lent_are_told(
    upstream: dict[str, Any], cause: str, mode: str
) -> None:
    """Brokers' own ACLs, which knew the clients, know the proxy now."""
    (found,) = reported(upstream, mode)
    assert found == (
        f"every client may do what brokers allow the proxy itself ({cause}), and nothing is denied"
        f" (authorizer.mode: {mode})"
    )
    assert reported(upstream) == ()


def test_without_an_identity_brokers_judge_nobody_by_it() -> None:
    assert reported({"security.protocol": "SSL"} | REMOTE, "off") == ()
