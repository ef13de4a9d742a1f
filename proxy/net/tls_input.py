"""Limits on the bytes that OpenSSL gets at a time; pure.

OpenSSL processes all bytes that it gets before it returns, and some are expensive: a key update
(RFC 8446 section 4.6.3) has 27 bytes and takes as long as 64 KiB of data, and each byte of data may
have its own record. The caller only sees that much ciphertext yields little data. So a connection
begins with small pieces and gets larger ones while they yield data; after a piece without data it
waits for an iteration of the event loop. OpenSSL also allocates memory for a handshake message when
it reads its header, as much as the header announces: 131,396 bytes for a ClientHello, and 102,400
for a certificate, a limit that Python does not expose. So it only gets records whose last message
is complete.
"""

from typing import Final

RECORD: Final = 16_384
"""Largest plaintext of one record in bytes (RFC 8446 section 5.1)."""
MAX_RECORD: Final = RECORD + 2_053
"""Largest encrypted record in bytes (RFC 5246 section 6.2.3)."""

PIECE: Final = 16_384
"""Largest piece in bytes that OpenSSL gets at once; it keeps as much memory for the connection."""
MIN_PIECE: Final = 1_024
"""Size in bytes of the first piece, and of one after a piece without data: forty key updates, which
take a millisecond."""
MAX_RECORDS: Final = 256
"""Largest number of records that are decrypted at a time, however little data they have."""
MAX_WITHOUT_DATA: Final = 65_536
"""Largest number of bytes in a row that yield no data: no peer has a reason for so many key
updates."""
MAX_HANDSHAKE: Final = 32_768
"""Largest handshake in bytes, and largest handshake message, which is Java's limit of one of its
messages; usual chains of certificates take a fifth."""
FIRST_PIECE: Final = 2_048
"""`PIECE` in bytes for handshakes and unauthenticated clients. Usual messages are shorter."""
MAX_UNREAD_ANSWERS: Final = 16
"""Largest number of answers to key updates while the peer does not read."""


class Pace:
    """Pace of one connection's decryption."""

    __slots__ = ("largest", "piece", "without_data")

    def __init__(self, largest: int = PIECE) -> None:
        self.largest = largest
        """Largest piece in bytes."""
        self.piece = MIN_PIECE
        """Number of bytes that OpenSSL gets at once."""
        self.without_data = 0
        """Number of bytes of ciphertext since the last data."""

    def may_continue(self, ciphertext: int, plaintext: int) -> bool:
        """Count a piece: `ciphertext` bytes yielded `plaintext` bytes of data. Return False if it
        is the turn of other connections. A part of a record yields no data yet, so a connection
        whose pieces yielded data before may continue up to a whole record."""
        self.without_data += ciphertext
        if not plaintext:
            if self.without_data > MAX_RECORD:
                self.piece = MIN_PIECE
            return self.without_data <= min(4 * self.piece, MAX_RECORD)
        is_efficient = 2 * plaintext >= self.without_data
        self.piece = min(2 * self.piece, self.largest) if is_efficient else MIN_PIECE
        self.without_data = 0
        return is_efficient

    @property
    def must_close(self) -> bool:
        """True if too much ciphertext has arrived without data."""
        return self.without_data > MAX_WITHOUT_DATA


_CHANGE_CIPHER_SPEC: Final = 20
"""Content types of records (RFC 8446 section 5.1)."""
_HANDSHAKE: Final = 22
_RECORD_HEADER: Final = 5
"""Size in bytes of a record's header: content type, version, length."""
_MESSAGE_HEADER: Final = 4
"""Size in bytes of a handshake message's header: type, length (RFC 8446 section 4)."""
_VERSION_AND_RANDOM: Final = 34
"""Size in bytes of the first two fields of a ClientHello (RFC 8446 section 4.1.2)."""
_EXTENSION_HEADER: Final = 4
"""Size in bytes of an extension's header: type, length (RFC 8446 section 4.2)."""
_SERVER_NAME: Final = 0
"""Type of the extension with the server name (RFC 6066 section 3)."""
_NAME_HEADER: Final = 5
"""Size in bytes of the fields before the name: the size of the list, the name's type and size."""


def server_name(records: bytes) -> str | None:
    """Return the server name of the ClientHello that whole records begin with (RFC 6066 section 3).

    None if the name is missing or does not parse: OpenSSL parses it as well. The name is in lower
    case; characters that are not ASCII are escaped.
    """
    contents, at = [], 0
    while at < len(records):
        start = at + _RECORD_HEADER
        at = start + int.from_bytes(records[start - 2 : start])
        contents.append(records[start:at])
    hello = b"".join(contents)
    at = _MESSAGE_HEADER + _VERSION_AND_RANDOM
    for size_bytes in (1, 2, 1):  # session id, cipher suites, compression methods
        at += size_bytes + int.from_bytes(hello[at : at + size_bytes])
    at += 2  # the size of all extensions
    while at + _EXTENSION_HEADER <= len(hello):
        kind, size = int.from_bytes(hello[at : at + 2]), int.from_bytes(hello[at + 2 : at + 4])
        at += _EXTENSION_HEADER
        if kind == _SERVER_NAME:  # a list of one name of type 0
            names = hello[at : at + size]
            name = names[_NAME_HEADER:]
            is_name = names[2:_NAME_HEADER] == b"\0" + len(name).to_bytes(2)
            return name.decode("ascii", "backslashreplace").lower() if is_name and name else None
        at += size
    return None


class HandshakeMessages:
    """Parser of a client's records in a handshake."""

    __slots__ = ("_header", "_missing", "_scanned")

    def __init__(self) -> None:
        self._header = b""
        """The incomplete header of a message."""
        self._missing = 0
        """Number of bytes that the current message still lacks."""
        self._scanned = 0
        """Number of scanned bytes of incomplete messages."""

    def complete(self, data: bytes, *, encrypted: bool) -> int | None:
        """Return the number of bytes at the beginning of `data` that are complete messages.

        None if a message or record is too long, or a record of another type is in the middle of a
        message (RFC 8446 section 5.1). `data` begins where the result of the last call ended. A
        change_cipher_spec ends the result: only OpenSSL knows whether later handshake records are
        `encrypted`, as with TLS 1.2. `FIRST_PIECE` also ends it: more may not be a handshake.
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
