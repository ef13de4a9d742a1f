"""Limit on how much ciphertext is decrypted at a time; pure.

OpenSSL processes all bytes that it is given before it returns, and some are expensive: a key update
(RFC 8446 section 4.6.3) has 27 bytes and takes as long as 64 KiB of data, and each byte of data may
have its own record. The caller only sees that much ciphertext yields little data. So a connection
begins with small pieces, has larger ones while they yield data, and waits for an iteration of the
event loop after a piece that did not.
"""

from typing import Final

RECORD: Final = 16_384
"""Largest plaintext of one record in bytes (RFC 8446 section 5.1)."""
MAX_RECORD: Final = RECORD + 2_053
"""Largest record in bytes as it is sent (RFC 5246 section 6.2.3)."""

PIECE: Final = 16_384
"""Largest piece in bytes that OpenSSL is given at once; it keeps as much memory for the
connection."""
MIN_PIECE: Final = 1_024
"""Size in bytes of the first piece, and of one after a piece without data: forty key updates, which
take a millisecond."""
MAX_RECORDS: Final = 256
"""Largest number of records that are decrypted at a time, however little data they have."""
MAX_WITHOUT_DATA: Final = 65_536
"""Largest number of bytes without any data: no peer has a reason for so many key updates in a
row."""
MAX_HANDSHAKE: Final = 32_768
"""Largest handshake in bytes, and largest handshake message, which is Java's limit of one of its
messages; usual chains of certificates take a fifth."""
FIRST_PIECE: Final = 2_048
"""`PIECE` in bytes for handshakes and unauthenticated clients. Usual messages are shorter."""
MAX_UNREAD_ANSWERS: Final = 16
"""Largest number of answers to key updates while the peer does not read what it is sent."""


class Pace:
    """Pace of one connection's decryption."""

    __slots__ = ("largest", "piece", "without_data")

    def __init__(self, largest: int = PIECE) -> None:
        self.largest = largest
        """Largest piece in bytes."""
        self.piece = MIN_PIECE
        """Number of bytes to be given to OpenSSL at once."""
        self.without_data = 0
        """Number of bytes of ciphertext since the last data."""

    def may_continue(self, ciphertext: int, plaintext: int) -> bool:
        """Count a piece: `plaintext` bytes of data came of `ciphertext` bytes.

        False: other connections are next. A part of a record yields no data yet, so a connection
        whose pieces yielded data before may continue up to a whole record.
        """
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
        """Return whether too much ciphertext without data has come."""
        return self.without_data > MAX_WITHOUT_DATA
