"""Recognition of other protocols by their first bytes, and reasons of failed handshakes; pure."""

import ssl
from enum import Enum
from typing import Final, Self

from proxy.connection.frames import Bytes
from proxy.tls.material import words

_HANDSHAKE: Final = 22
_ALERT: Final = 21
"""Content type of a TLS alert (RFC 8446 section 5.1)."""
_VERSION_MAJOR: Final = 3
_METHODS: Final = (b"GE", b"PO", b"HE", b"PU", b"OP", b"CO")


class WrongProtocol(Enum):
    """Protocol that a client speaks instead of TLS, by its first bytes."""

    TLS = "TLS"
    KAFKA = "Kafka's protocol without TLS"
    HTTP = "HTTP"
    UNKNOWN = "something that is not TLS"

    @classmethod
    def by_first_bytes(cls, data: Bytes) -> Self:
        """Return the protocol of the first bytes; one byte is enough to recognize TLS."""
        if data[0] == _HANDSHAKE:
            return cls.TLS
        if data[0] == 0:  # a frame of Kafka's below 16 MiB
            return cls.KAFKA
        return cls.HTTP if bytes(data[:2]) in _METHODS else cls.UNKNOWN


Met = WrongProtocol | ssl.SSLError | ssl.SSLObject
"""Outcome of a client's handshake: another protocol, a failure, or the completed handshake."""


def begins_tls(data: Bytes) -> bool:
    """Return whether bytes begin a TLS handshake: as a frame it would have 369 MB."""
    return len(data) >= 2 and data[0] == _HANDSHAKE and data[1] == _VERSION_MAJOR


def answers_tls(size: bytes) -> bool:
    """Return whether a broker answers a request with a TLS alert."""
    return size[0] in (_ALERT, _HANDSHAKE) and size[1] == _VERSION_MAJOR


HANGS_UP: Final = "it closes the connection in the TLS handshake; does it speak TLS?"
"""Explanation of a closed connection: a broker without TLS takes a handshake for a frame that is
too long."""

_HINTS: Final = {
    "TLSV1_ALERT_UNKNOWN_CA": "the other side does not trust our certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the other side does not accept our certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the other side does not accept our certificate, or wants one",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the other side finds our certificate expired",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the other side refuses the handshake: it may want a"
    " certificate of ours, or a cipher suite that we have not",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the other side wants a certificate of ours",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate, and ssl.client.auth is required",
    "NO_SHARED_CIPHER": "no cipher suite in common",
    "UNSUPPORTED_PROTOCOL": "no version of TLS in common",
    "TLSV1_ALERT_PROTOCOL_VERSION": "no version of TLS in common",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "PACKET_LENGTH_TOO_LONG": "it does not speak TLS",
}


def handshake_error(error: Exception) -> str:
    """Return what an error of TLS or of a socket means, as the end of a sentence."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate is refused: {error.verify_message}"
        case ssl.SSLError():
            return _HINTS.get(error.reason or "", words(error.reason))
        case TimeoutError():
            return "timeout"
        case OSError():
            return error.strerror or str(error)
    return str(error)
