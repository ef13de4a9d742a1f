"""Certificates: which are trusted, and which settings fit."""

import base64
import logging
import ssl
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from proxy.errors import ConfigError
from proxy.net.tls_contexts import RETRY_AFTER, Tls, openssl_name
from tests.support.certificates import HOUR, Issued
from tests.support.tables import table
from tests.support.tls import (
    AUTHORITY,
    FIRST,
    LISTENER,
    OTHER,
    RSA,
    SECOND,
    WALL,
    connected,
    context_trusting,
    looked,
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


@pytest.mark.parametrize(("settings", "problem"), table(__file__, "settings_that_do_not_fit"))
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


# How certificates are replaced, and what is refused in their place


@pytest.fixture
def tls(directory: Path) -> Tls:
    return opened(directory).listeners["clients"]


def test_an_overwritten_file_is_taken_up(tls: Tls, directory: Path) -> None:
    assert serial(tls) == FIRST.serial
    (directory / "server.pem").write_bytes(SECOND.pem)
    assert looked(tls)
    assert serial(tls) == SECOND.serial


def test_a_projected_volume_is_taken_up(directory: Path) -> None:
    """Kubernetes: files are links through `..data`, which is swapped for another directory."""
    for name, issued in (("..1", FIRST), ("..2", SECOND)):
        (directory / name).mkdir()
        (directory / name / "tls.crt").write_bytes(issued.certificate)
        (directory / name / "tls.key").write_bytes(issued.key)
    (directory / "..data").symlink_to("..1")
    for name in ("tls.crt", "tls.key"):
        (directory / name).symlink_to(f"..data/{name}")
    tls = opened(
        directory, ssl_keystore_location="tls.crt", ssl_keystore_key_location="tls.key"
    ).listeners["clients"]
    assert serial(tls) == FIRST.serial
    (directory / "..new").symlink_to("..2")
    (directory / "..new").rename(directory / "..data")
    assert looked(tls)
    assert serial(tls) == SECOND.serial


def test_one_session_ticket_is_sent(tls: Tls) -> None:
    """As Kafka's listeners do; each costs a record, and a copy of the session in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = context_trusting().wrap_bio(to_client, to_server, server_hostname="localhost")
    far = tls.context.wrap_bio(to_server, to_client, server_side=True)
    for end in (near, far):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    near.do_handshake()
    far.do_handshake()
    records = to_client.read()
    assert len(records) == 5 + int.from_bytes(records[3:5]), "one record"
    to_client.write(records)
    with pytest.raises(ssl.SSLWantReadError):
        near.read(1)
    assert near.session is not None
    assert near.session.has_ticket


def test_sessions_are_resumed_over_a_replacement(tls: Tls, directory: Path) -> None:
    """Ten thousand clients that come back do not each cost a full handshake."""
    client = context_trusting()
    session = connected(tls.context, client).session
    assert connected(tls.context, client, session=session).session_reused
    (directory / "server.pem").write_bytes(SECOND.pem)
    assert looked(tls)
    assert connected(tls.context, client, session=session).session_reused


def test_another_kind_of_key_leaves_none_of_the_old(tls: Tls, directory: Path) -> None:
    """A context holds a certificate for each kind, and would show the old one to some clients."""
    (directory / "server.pem").write_bytes(RSA.pem)
    assert looked(tls)
    assert serial(tls) == RSA.serial
    client = context_trusting()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    client.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    with pytest.raises(ssl.SSLError):
        connected(tls.context, client)


def test_who_is_trusted_no_more_is_not_resumed_either(directory: Path) -> None:
    """A resumed session is not verified again: its ticket must end with the trust."""
    tls = opened(directory, ssl_client_auth="required", ssl_truststore_location="ca.pem").listeners[
        "clients"
    ]
    client = context_trusting()
    (directory / "client.pem").write_bytes(AUTHORITY.issue("client").pem)
    client.load_cert_chain(directory / "client.pem")
    session = connected(tls.context, client).session
    (directory / "ca.pem").write_bytes(OTHER.certificate)
    assert looked(tls)
    with pytest.raises(ssl.SSLError):
        connected(tls.context, client, session=session)


def test_nothing_is_done_while_nothing_changes(tls: Tls, directory: Path) -> None:
    assert not looked(tls)
    (directory / "server.pem").write_bytes(FIRST.pem)  # as it was
    assert not looked(tls)


# --- what is refused


_HALF = SECOND.pem[: len(SECOND.pem) - 100]
_NO_KEY_OF_OURS = "ssl.keystore.location: the certificate's key must be RSA, EC, Ed25519 or Ed448"


def _altered(old: str, new: str) -> bytes:
    """SECOND, with other bytes (hex) in the certificate; its signature, which nobody looks at, is
    wrong then."""
    pem = SECOND.certificate.decode().splitlines()
    der = base64.b64decode("".join(pem[1:-1]))
    assert bytes.fromhex(old) in der
    lines = base64.encodebytes(der.replace(bytes.fromhex(old), bytes.fromhex(new), 1)).decode()
    return SECOND.key + f"{pem[0]}\n{lines}{pem[-1]}\n".encode()


BAD: dict[str, tuple[bytes, str]] = {
    "half": (_HALF, "ssl.keystore.location: is cut off in the middle"),
    "empty": (b"", "ssl.keystore.location: DIR/server.pem is empty"),
    "mismatch": (
        SECOND.key + FIRST.certificate,
        "ssl.keystore.location: the private key does not belong to the certificate",
    ),
    "expired": (
        AUTHORITY.issue(begins=-2 * HOUR, ends=-HOUR).pem,
        "ssl.keystore.location: the certificate expired",
    ),
    "early": (
        AUTHORITY.issue(begins=HOUR).pem,
        "ssl.keystore.location: the certificate is not valid before",
    ),
    "no key": (SECOND.certificate, "ssl.keystore.location: holds no private key in PEM"),
    "no certificate": (SECOND.key, "ssl.keystore.location: holds no certificate in PEM"),
    "encrypted": (
        SECOND.encrypted("secret"),
        "ssl.keystore.location: the private key is encrypted: set ssl.key.password",
    ),
    "garbage": (
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n" + SECOND.key,
        "ssl.keystore.location: holds a certificate that does not parse",
    ),
    "unknown version": (
        _altered("a003020102", "a003020109"),
        "ssl.keystore.location: holds a certificate that does not parse",
    ),
    "unknown curve": (_altered("06082a8648ce3d030107", "06082a8648ce3d030177"), _NO_KEY_OF_OURS),
    "unknown algorithm": (_altered("06072a8648ce3d0201", "06072a8648ce3d0277"), _NO_KEY_OF_OURS),
    "no point of the curve": (_altered("03420004", "03420005"), _NO_KEY_OF_OURS),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_replacement_is_refused_and_told_once(
    tls: Tls, directory: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    contents, problem = BAD[name]
    (directory / "server.pem").write_bytes(contents)
    with caplog.at_level(logging.INFO):
        assert not looked(tls)
        assert not looked(tls)
        assert not looked(tls, WALL + RETRY_AFTER)
    assert serial(tls) == FIRST.serial
    (record,) = caplog.records
    assert problem.replace("DIR", str(directory)) in record.getMessage()
    assert "PRIVATE" not in record.getMessage()
    (directory / "server.pem").write_bytes(SECOND.pem)
    assert looked(tls)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_certificate_is_refused_at_the_start(directory: Path, name: str) -> None:
    contents, problem = BAD[name]
    (directory / "server.pem").write_bytes(contents)
    with pytest.raises(ConfigError) as refused:
        opened(directory)
    assert str(refused.value).startswith(f"{LISTENER}.{problem.replace('DIR', str(directory))}")


def test_a_missing_file_leaves_the_old_certificate(tls: Tls, directory: Path) -> None:
    (directory / "server.pem").unlink()
    assert not looked(tls)
    assert serial(tls) == FIRST.serial


def test_half_a_truststore_is_refused(directory: Path) -> None:
    """OpenSSL would trust the first half in silence."""
    half = AUTHORITY.certificate + OTHER.certificate[:200]
    (directory / "ca.pem").write_bytes(half)
    with pytest.raises(ConfigError, match="is cut off in the middle"):
        opened(directory, ssl_client_auth="required", ssl_truststore_location="ca.pem")


def test_what_is_being_written_is_waited_for(tls: Tls, directory: Path) -> None:
    """Certificate and key are often two files, and never written at once."""
    (directory / "server.pem").write_bytes(SECOND.pem[:200])
    assert tls.check(WALL) is None
    (directory / "server.pem").write_bytes(SECOND.pem)
    assert tls.check(WALL) is None
    assert tls.check(WALL) is not None


def test_an_early_certificate_is_taken_up_when_it_begins(tls: Tls, directory: Path) -> None:
    early = AUTHORITY.issue(begins=timedelta(seconds=30))
    (directory / "server.pem").write_bytes(early.pem)
    assert not looked(tls)
    replacement = tls.check(WALL + RETRY_AFTER)
    assert replacement is not None
