"""Boundaries of the handshake messages that a client sends in the clear; pure.

OpenSSL allocates memory for a message when it reads its header, as much as the header announces:
131,396 bytes for a ClientHello, and 102,400 for a certificate, a limit that Python does not expose.
So it is only given records whose last message is complete.
"""

from typing import Final

from proxy.net.tls_pace import FIRST_PIECE, MAX_HANDSHAKE, MAX_RECORD

_CHANGE_CIPHER_SPEC: Final = 20
"""Content type of a record (RFC 8446 section 5.1), as `_HANDSHAKE` is."""
_HANDSHAKE: Final = 22
_RECORD_HEADER: Final = 5
"""Size in bytes of a record's header: content type, version, length."""
_MESSAGE_HEADER: Final = 4
"""Size in bytes of a handshake message's header: type, length (RFC 8446 section 4)."""


class HandshakeMessages:
    """Parser of a client's records in a handshake."""

    __slots__ = ("_header", "_missing", "_scanned")

    def __init__(self) -> None:
        self._header = b""
        """The incomplete header of a message."""
        self._missing = 0
        """Number of bytes that the present message still lacks."""
        self._scanned = 0
        """Number of bytes that were scanned, of those that are not complete messages."""

    def complete(self, data: bytes, *, encrypted: bool) -> int | None:
        """Return the number of bytes at the beginning of `data` that are complete messages.

        None if a message or record is too long, or a record of another type is in the middle of a
        message (RFC 8446 section 5.1). `data` begins where the result of the last call ended. A
        change_cipher_spec ends the result: only OpenSSL knows whether later handshake records are
        `encrypted`, as with TLS 1.2. `FIRST_PIECE` ends it, too: more may not be a handshake.
        """
        end = 0
        while end < FIRST_PIECE and len(data) >= self._scanned + _RECORD_HEADER:
            start = self._scanned + _RECORD_HEADER
            content_type, size = data[self._scanned], int.from_bytes(data[start - 2 : start])
            if size > MAX_RECORD:
                return None
            if len(data) < start + size:
                break
            if content_type == _HANDSHAKE and not encrypted:
                self._scan(data[start : start + size])
            elif self._is_within_message:
                return None
            if self._missing > MAX_HANDSHAKE:
                return None
            self._scanned = start + size
            if not self._is_within_message:
                end = self._scanned
                if content_type == _CHANGE_CIPHER_SPEC:
                    break
        self._scanned -= end
        return end

    @property
    def _is_within_message(self) -> bool:
        return bool(self._missing or self._header)

    def _scan(self, content: bytes) -> None:
        """Scan the messages, and parts of messages, of one record."""
        while content:
            if self._missing:
                taken = min(self._missing, len(content))
                self._missing -= taken
                content = content[taken:]
                continue
            taken = _MESSAGE_HEADER - len(self._header)
            self._header, content = self._header + content[:taken], content[taken:]
            if len(self._header) == _MESSAGE_HEADER:
                self._missing = int.from_bytes(self._header[1:])
                self._header = b""
