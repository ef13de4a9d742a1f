"""Certificates: which are trusted, and which settings fit."""

import ssl
from pathlib import Path
from typing import Any

import pytest

from proxy.errors import ConfigError
from proxy.net.tls_contexts import openssl_name
from tests.support.certificates import HOUR, Issued
from tests.support.tls import (
    AUTHORITY,
    FIRST,
    LISTENER,
    OTHER,
    SECOND,
    connected,
    context_trusting,
    opened,
    serial,
)


def upstream(directory: Path, **more: Any) -> ssl.SSLContext:
    keys = {key.replace("_", "."): value for key, value in more.items()}
    tls = opened(directory, upstream={"security.protocol": "SSL", **keys}).upstream
    assert tls is not None
    return tls.context


def server(issued: Issued, directory: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (directory / "broker.pem").write_bytes(issued.pem)
    context.load_cert_chain(directory / "broker.pem")
    return context


def test_a_broker_is_believed_by_name_and_by_address(directory: Path) -> None:
    context = upstream(directory, ssl_truststore_location="ca.pem")
    for host in ("localhost", "127.0.0.1", "::1"):
        connected(server(FIRST, directory), context, host)


@pytest.mark.parametrize(
    ("issued", "host"),
    [
        (FIRST, "elsewhere"),
        (FIRST, "10.0.0.1"),
        (OTHER.issue(), "localhost"),
        (AUTHORITY.issue(begins=-2 * HOUR, ends=-HOUR), "localhost"),
    ],
    ids=["wrong name", "wrong address", "unknown authority", "expired"],
)
def test_a_broker_is_not_believed(directory: Path, issued: Issued, host: str) -> None:
    context = upstream(directory, ssl_truststore_location="ca.pem")
    with pytest.raises(ssl.SSLCertVerificationError):
        connected(server(issued, directory), context, host)


def test_without_identification_any_trusted_broker_will_do(directory: Path) -> None:
    more = {"ssl_truststore_location": "ca.pem", "ssl_endpoint_identification_algorithm": ""}
    context = upstream(directory, **more)
    connected(server(FIRST, directory), context, "elsewhere")
    with pytest.raises(ssl.SSLCertVerificationError):
        connected(server(OTHER.issue(), directory), context, "elsewhere")


def test_a_self_signed_broker_is_believed_if_it_is_in_the_truststore(directory: Path) -> None:
    """Java takes every certificate of a truststore for an authority; so is it here."""
    (directory / "one.pem").write_bytes(FIRST.certificate)
    context = upstream(directory, ssl_truststore_location="one.pem")
    connected(server(FIRST, directory), context)


def test_an_encrypted_key_and_its_password(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "server.pem").write_bytes(SECOND.encrypted("secret"))
    (directory / "password").write_text("secret\n")
    assert serial(opened(directory, ssl_key_password="file:password").listeners["clients"])
    monkeypatch.setenv("KEY_PASSWORD", "wrong")
    with pytest.raises(ConfigError, match="cannot be decrypted") as refused:
        opened(directory, ssl_key_password="env:KEY_PASSWORD")
    assert "wrong" not in str(refused.value)


def test_protocols_and_ciphers(directory: Path) -> None:
    tls = opened(
        directory,
        ssl_enabled_protocols="TLSv1.2",
        ssl_cipher_suites="TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    ).listeners["clients"]
    near = connected(tls.context, context_trusting())
    assert near.version() == "TLSv1.2"
    assert (near.cipher() or ("",))[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"
    with pytest.raises(ConfigError, match=r"ssl.cipher.suites: OpenSSL here has no TLS_RSA_WITH_X"):
        opened(directory, ssl_cipher_suites="TLS_RSA_WITH_X")


@pytest.mark.parametrize(
    ("standard", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("TLS_RSA_WITH_AES_256_CBC_SHA", "AES256-SHA"),
        ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384", "ECDHE-RSA-AES256-SHA384"),
    ],
)
def test_names_of_ciphers(standard: str, openssl: str) -> None:
    assert openssl_name(standard) == openssl


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"ssl.keystore.location": None}, "ssl.keystore.location: is required with SASL_SSL"),
        (
            {"ssl.keystore.type": "JKS"},
            "ssl.keystore.type: must be PEM, the only type that is available, got 'JKS'",
        ),
        (
            {"security.protocol": "SSL"},
            "sasl.enabled.mechanisms: has no meaning with security.protocol: SSL",
        ),
        (
            {"security.protocol": "SASL_PLAINTEXT"},
            "ssl.keystore.location: has no meaning with security.protocol: SASL_PLAINTEXT",
        ),
        ({"ssl.client.auth": "required"}, "ssl.truststore.location: is required with"),
        ({"ssl.key.password": "hunter2"}, "ssl.key.password: must be file:PATH or env:NAME"),
        ({"ssl.enabled.protocols": ["TLSv1.1"]}, "ssl.enabled.protocols[0]: must be 'TLSv1.2' or"),
        ({"ssl.keystore.key": "x"}, "ssl.keystore.key: unknown key, did you mean"),
    ],
)
def test_settings_that_do_not_fit(directory: Path, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        opened(directory, **{key.replace(".", "_"): value for key, value in settings.items()})
    assert str(refused.value).startswith(f"{LISTENER}.{problem}")
    assert "hunter2" not in str(refused.value)


def test_no_secret_is_shown() -> None:
    from proxy.net.tls_material import Material

    material = Material(
        chain=b"", key=b"KEY", password="hunter2", trusted=b"", algorithm="", expires_at=None
    )
    assert "hunter2" not in repr(material)
    assert "KEY" not in repr(material)
