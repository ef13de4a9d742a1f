"""A properties file's `ssl.*`, the files that it names, and a handshake without sockets."""

import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from proxy.admin import read_client_properties
from tests.certificates import Issued

PASSWORD = "store-secret"
BUNDLED = serialization.BestAvailableEncryption(PASSWORD.encode())


def context(directory: Path, *lines: str) -> ssl.SSLContext:
    """What comes of a file with these lines."""
    file = directory / "client.properties"
    file.write_text("\n".join(("security.protocol=SSL", *lines)))
    found = read_client_properties(file).ssl_context
    assert found is not None
    return found


def trusting(path: Path, kind: str = "PEM") -> tuple[str, ...]:
    return (f"ssl.truststore.type={kind}", f"ssl.truststore.location={path}")


def showing(path: Path, kind: str = "PEM") -> tuple[str, ...]:
    return (f"ssl.keystore.type={kind}", f"ssl.keystore.location={path}")


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def value(pem: bytes) -> str:
    """PEM over several lines of a properties file, which makes one line of it."""
    return pem.decode().strip().replace("\n", " \\\n  ")


def escaped(pem: bytes) -> str:
    """PEM in one line, its line ends escaped."""
    return pem.decode().replace("\n", "\\n")


def truststore(*trusted: bytes) -> bytes:
    """PKCS12 as keytool makes it of certificates."""
    certificates = [x509.load_pem_x509_certificate(pem) for pem in trusted]
    return pkcs12.serialize_key_and_certificates(None, None, None, certificates, BUNDLED)


def keystore(issued: Issued, *above: bytes) -> bytes:
    """PKCS12 with a key, its certificate, and those above it."""
    return pkcs12.serialize_key_and_certificates(
        b"me",
        serialization.load_pem_private_key(issued.key, None),  # type: ignore[arg-type]  # our kinds
        x509.load_pem_x509_certificate(issued.certificate),
        [x509.load_pem_x509_certificate(pem) for pem in above],
        BUNDLED,
    )


def shake_hands(
    client: ssl.SSLContext, server: ssl.SSLContext, host: str = "localhost"
) -> tuple[str | None, int | None]:
    """The version of TLS, and the serial number that the server was shown. Raises ssl.SSLError."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(down, up, server_hostname=host)
    theirs = server.wrap_bio(up, down, server_side=True)
    waiting = [ours, theirs]
    for _ in range(10):
        for one in tuple(waiting):
            try:
                one.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(one)
    assert waiting == []
    shown = theirs.getpeercert()
    return theirs.version(), int(str(shown["serialNumber"]), 16) if shown else None
