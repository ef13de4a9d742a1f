"""Reasons for failed TLS handshakes, and detection of other protocols by first bytes; pure."""

import os
import re
import socket
import ssl
from enum import Enum
from typing import Final, Self

from proxy.config.values import shown
from proxy.connection.frames import Bytes
from proxy.net.tls_material import words

_ALERT: Final = 21
_HANDSHAKE: Final = 22
"""Content types of TLS records (RFC 8446 section 5.1): an alert, and a handshake."""
_VERSION_MAJOR: Final = 3
"""First byte of the version in every TLS record."""
_METHODS: Final = (b"GE", b"PO", b"HE", b"PU", b"OP", b"CO")
"""First two letters of HTTP methods."""
_PROXY_HEADERS: Final = (b"PROX", b"\r\n\r\n")
"""First four bytes of the headers of the PROXY protocol, versions 1 and 2."""


class WrongProtocol(Enum):
    """Protocol that a client speaks instead of the listener's, by its first bytes."""

    TLS = "TLS"
    KAFKA = "Kafka's protocol without TLS"
    HTTP = "HTTP"
    PROXY = "the PROXY protocol, which is not enabled"
    UNKNOWN = "something that is not TLS"

    @classmethod
    def by_first_bytes(cls, data: Bytes) -> Self:
        """Return the protocol of the first bytes; one byte is enough to recognize TLS."""
        if data[0] == _HANDSHAKE and (len(data) < 2 or data[1] == _VERSION_MAJOR):
            return cls.TLS
        if data[0] == 0:  # the length of a Kafka frame below 16 MiB
            return cls.KAFKA
        if bytes(data[:4]) in _PROXY_HEADERS:
            return cls.PROXY
        return cls.HTTP if bytes(data[:2]) in _METHODS else cls.UNKNOWN


NEVER_KAFKA: Final = frozenset({WrongProtocol.TLS, WrongProtocol.HTTP, WrongProtocol.PROXY})
"""Protocols whose first bytes, as the size of a Kafka frame, would mean more than 200 MB."""

UNRECOGNIZED_NAME: Final = bytes((_ALERT, _VERSION_MAJOR, 3, 0, 2, 2, 112))
"""Record of the fatal alert for an unknown server name (RFC 8446 section 6)."""


class ServerNameError(ssl.SSLError):
    """A client sent no server name, or an unknown one; the message has the name, quoted."""

    def __init__(self, name: str | None) -> None:
        what = "no server name" if name is None else f"the unknown server name {shown(name)}"
        super().__init__(1, f"it sends {what} (SNI); see advertised.host and broker.hosts")


HandshakeResult = WrongProtocol | ssl.SSLError | ssl.SSLObject
"""Outcome of a client's handshake: another protocol, a failure, or the completed handshake."""


def is_tls_answer(size: bytes) -> bool:
    """Return whether the size field of a broker's response is the beginning of a TLS record."""
    return size[0] in (_ALERT, _HANDSHAKE) and size[1] == _VERSION_MAJOR


CLOSED_IN_HANDSHAKE: Final = "it closes the connection in the TLS handshake; does it speak TLS?"
"""Explanation of a connection that is closed in the handshake: a broker without TLS reads the
handshake as a frame that is too long."""


class ClosedInHandshake(ConnectionError):
    """The other side closed the connection in the TLS handshake."""

    def __str__(self) -> str:
        return CLOSED_IN_HANDSHAKE


NO_TLS: Final = "it does not speak TLS"
"""Explanation of a connection whose first bytes are not those of TLS."""

_HINTS: Final = {
    "TLSV1_ALERT_UNKNOWN_CA": "the other side does not trust our certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the other side does not accept our certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the other side does not accept our certificate, or wants one",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the other side considers our certificate expired",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the other side refuses the handshake: it may require"
    " a client certificate, or a cipher suite that we do not have",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the other side requires a client certificate",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate, and ssl.client.auth is required",
    "NO_SHARED_CIPHER": "no cipher suite in common",
    "UNSUPPORTED_PROTOCOL": "no version of TLS in common",
    "TLSV1_ALERT_PROTOCOL_VERSION": "no version of TLS in common",
    "WRONG_VERSION_NUMBER": NO_TLS,
    "PACKET_LENGTH_TOO_LONG": NO_TLS,
}


def handshake_error(error: Exception) -> str:
    """Return an explanation of a TLS or socket error, as the end of a sentence."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate is refused: {error.verify_message}"
        case ServerNameError() | ClosedInHandshake():
            return str(error)
        case ssl.SSLError():
            return _HINTS.get(error.reason or "", words(error.reason))
        case TimeoutError():
            return "timeout"
        case OSError():
            return _system_error(error)
    return str(error)


def _system_error(error: OSError) -> str:
    """Return the system's message; asyncio's is `Connect call failed`, with a Python tuple."""
    if isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    first = re.search(r"\[Errno ([0-9]+)\]", str(error))  # the first address of several
    number = error.errno or (int(first[1]) if first else None)
    return str(error) if number is None else os.strerror(number)
