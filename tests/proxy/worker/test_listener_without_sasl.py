"""Listeners of PLAINTEXT and SSL over real sockets: who somebody is, and who is nobody."""

import logging
import ssl
from contextlib import suppress
from pathlib import Path
from time import monotonic, time
from typing import Any

import pytest
from cryptography.x509 import Name, NameAttribute, load_pem_x509_certificate
from cryptography.x509.oid import NameOID

from proxy.connection.commands import CloseReason
from tests.support.certificates import Authority, Issued
from tests.support.frames import api_versions, handshake, metadata
from tests.support.processes import until
from tests.support.relay import PLAINTEXT, is_closed, listen, read_frame, settings_of, ssl_listener
from tests.support.tls import AUTHORITY, client_context
from tests.support.tls import FIRST as SERVER

OTHERS = Authority("other")
ALICE = AUTHORITY.issue(
    subject=Name(
        NameAttribute(oid, value)
        for oid, value in (
            (NameOID.COUNTRY_NAME, "DE"),
            (NameOID.ORGANIZATION_NAME, "Acme"),
            (NameOID.ORGANIZATIONAL_UNIT_NAME, "dev"),
            (NameOID.COMMON_NAME, "alice"),
        )
    )
)
ALICE_DN = "User:CN=alice,OU=dev,O=Acme,C=DE"
UNTRUSTED = OTHERS.issue("alice")


def of_organization(name: str) -> Issued:
    return AUTHORITY.issue(subject=Name([NameAttribute(NameOID.ORGANIZATION_NAME, name)]))


REQUIRED = ssl_listener(ssl_client_auth="required")
REQUESTED = ssl_listener(ssl_client_auth="requested")
ANONYMOUS = "authenticated User:ANONYMOUS"
TLS_FAILED = "closed tls_handshake_failed"
NOBODY = "closed authentication_failed"
ONLY_ALICE = "RULE:^CN=(a[^,]*),OU=dev,.*$/$1/U"


@pytest.mark.parametrize(
    ("given", "shown", "expected"),
    [
        (PLAINTEXT, None, ANONYMOUS),
        (ssl_listener(), None, ANONYMOUS),
        (ssl_listener(), ALICE, ANONYMOUS),  # not asked for, so not verified, so not believed
        (ssl_listener(), UNTRUSTED, ANONYMOUS),
        (REQUESTED, None, ANONYMOUS),
        (REQUESTED, ALICE, f"authenticated {ALICE_DN}"),
        (REQUESTED, UNTRUSTED, TLS_FAILED),
        (REQUIRED, ALICE, f"authenticated {ALICE_DN}"),
        (REQUIRED, None, TLS_FAILED),
        (REQUIRED, UNTRUSTED, TLS_FAILED),
        (REQUIRED | {"ssl.principal.mapping.rules": ONLY_ALICE}, ALICE, "authenticated User:ALICE"),
        (REQUIRED | {"ssl.principal.mapping.rules": ONLY_ALICE}, SERVER, NOBODY),
        (REQUESTED | {"ssl.principal.mapping.rules": ONLY_ALICE}, None, ANONYMOUS),
    ],
)
async def test_who_a_client_is(
    directory: Path, given: dict[str, Any], shown: Issued | None, expected: str
) -> None:
    async with listen(directory, given) as running:
        tls = None if given is PLAINTEXT else client_context(AUTHORITY, shown=shown)
        assert await running.principal(tls) == expected
        reached = (3, 12) in running.broker.requests
        assert reached is expected.startswith("authenticated")


async def test_a_session_ends_when_its_certificate_does(directory: Path) -> None:
    async with listen(directory, REQUIRED) as running:
        tls = client_context(AUTHORITY, shown=ALICE)
        reader, writer = await running.connect(tls)
        writer.write(api_versions(1))
        await read_frame(reader)
        ends_at, reason = running.connection._ends_at
        assert reason is CloseReason.CERTIFICATE_EXPIRED
        certificate = load_pem_x509_certificate(ALICE.certificate)
        left = certificate.not_valid_after_utc.timestamp() - time()
        assert ends_at - monotonic() == pytest.approx(left, abs=60)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_who_resumes_a_tls_session_is_who_began_it(
    directory: Path, version: ssl.TLSVersion
) -> None:
    """Where a certificate is requested, to forget it would make an ANONYMOUS of anybody."""
    async with listen(directory, REQUESTED) as running:
        tls = client_context(AUTHORITY, shown=ALICE)
        tls.minimum_version = tls.maximum_version = version
        session = None
        for resumed in (False, True):
            running.log.clear()
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = tls.wrap_bio(incoming, outgoing, server_hostname="localhost", session=session)
            reader, writer = await running.connect()
            request, answer = metadata(1), b""
            while not answer:
                try:
                    if request:
                        client.write(request)
                        request = b""
                    answer = client.read(1_000)
                except ssl.SSLWantReadError:
                    writer.write(outgoing.read())
                    incoming.write(await reader.read(65_536))
            session = client.session
            assert client.session_reused is resumed
            assert running.log[0] == f"authenticated {ALICE_DN}"
            writer.close()
            await until(lambda: is_closed(running.log))


@pytest.mark.parametrize(
    ("organization", "reason"),
    [
        ("x\nWARNING all is lost", "its subject has control characters"),
        ("\x1b[31mx", "its subject has control characters"),
        ("x" * 20_000, "its subject has more than 512 characters"),
    ],
    ids=["a line of its own", "colours", "20 KB"],
)
async def test_a_hostile_subject_is_nobody_and_is_not_logged(
    directory: Path, caplog: pytest.LogCaptureFixture, organization: str, reason: str
) -> None:
    shown = client_context(AUTHORITY, shown=of_organization(organization))
    caplog.set_level(logging.WARNING)
    async with listen(directory, REQUIRED) as running:
        assert await running.principal(shown) == NOBODY
        assert await running.principal(shown) == NOBODY
        assert (3, 12) not in running.broker.requests
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"listener clients: the certificate of 127.0.0.1 is refused: {reason}"]


async def test_a_certificate_does_not_stand_for_sasl(directory: Path) -> None:
    """SASL_SSL: the certificate is asked for in addition."""
    given = REQUIRED | {
        "security.protocol": "SASL_SSL",
        "sasl.enabled.mechanisms": ["SCRAM-SHA-256"],
    }
    async with listen(directory, given) as running:
        found = await running.principal(client_context(AUTHORITY, shown=ALICE))
        assert found == "closed illegal_state"
        assert running.broker.requests == []


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
async def test_no_reload_lets_in_who_was_to_log_in(directory: Path, protocol: str) -> None:
    """`security.protocol` changes at a restart only, and so do the clients that it admits."""
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.enabled.mechanisms": ["SCRAM-SHA-256"]}
    after = PLAINTEXT if protocol == "PLAINTEXT" else REQUIRED
    async with listen(directory, given) as running:
        running.listener.apply(settings_of(directory, after)[0])
        assert await running.principal() == "closed illegal_state"
        reader, writer = await running.connect()
        writer.write(handshake(1, "SCRAM-SHA-256"))
        assert (await read_frame(reader))[4:6] == b"\0\0"


async def test_a_handshake_under_way_is_nobody(directory: Path) -> None:
    """It is a connection that is counted and timed, but has no principal and no way to a broker."""
    async with listen(directory, REQUIRED) as running:
        await running.connect()
        await until(lambda: bool(running.listener.clients))
        assert running.connection.principal is None
        timeout = running.connection.rules.authentication_timeout
        assert running.connection.next_deadline() == running.connection.connected_at + timeout


PROXY_V2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x0a\0\0\1\x0a\0\0\2\x12\x34\x23\x86"
"""The header of a connection from 10.0.0.1 to 10.0.0.2 (section 2.2 of the specification)."""


@pytest.mark.parametrize(
    ("given", "sent", "reported"),
    [
        (
            PLAINTEXT,
            b"GET /metrics HTTP/1.1\r\n",
            "speaks HTTP, but the listener expects PLAINTEXT",
        ),
        (
            PLAINTEXT,
            b"PROXY TCP4 10.0.0.1 10.0.0.2 4660 9094\r\n",
            "speaks the PROXY protocol, which is not enabled, but the listener expects PLAINTEXT",
        ),
        (
            PLAINTEXT,
            PROXY_V2,
            "speaks the PROXY protocol, which is not enabled, but the listener expects PLAINTEXT",
        ),
        (
            REQUIRED,
            b"PROXY TCP6 ::1 ::2 4660 9094\r\n",
            "speaks the PROXY protocol, which is not enabled, but the listener expects SSL",
        ),
        (
            REQUIRED,
            PROXY_V2,
            "speaks the PROXY protocol, which is not enabled, but the listener expects SSL",
        ),
        (
            PLAINTEXT,
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
            "speaks TLS, but the listener expects PLAINTEXT",
        ),
        (
            REQUIRED,
            api_versions(1),
            "speaks Kafka's protocol without TLS, but the listener expects SSL",
        ),
    ],
)
async def test_a_client_of_the_wrong_protocol_is_logged(
    directory: Path,
    caplog: pytest.LogCaptureFixture,
    given: dict[str, Any],
    sent: bytes,
    reported: str,
) -> None:
    caplog.set_level(logging.WARNING)
    async with listen(directory, given) as running:
        reader, writer = await running.connect()
        writer.write(sent)
        with suppress(ConnectionError):
            assert await reader.read() == b""
    assert [record.getMessage() for record in caplog.records] == [
        f"listener clients: 127.0.0.1 {reported}"
    ]
