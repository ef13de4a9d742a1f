"""Limit on how much ciphertext is decrypted in one go; pure.

OpenSSL works through all that it is given before it returns, and not all of it is worth the work: a
key update (RFC 8446 section 4.6.3) is 27 bytes and takes as long as 64 KiB of data, and a byte of
data may have a record to itself. Nothing of that is seen from outside, but that little comes of
much. So a peer begins with small pieces, has larger ones while data come of them, and waits for a
turn of the event loop after one that was not worth it.
"""

from typing import Final

RECORD: Final = 16_384
"""Largest plaintext of one record in bytes (RFC 8446 section 5.1)."""
MAX_RECORD: Final = RECORD + 2_053
"""Largest record in bytes as it is sent (RFC 5246 section 6.2.3): so many bytes contain a whole
one."""

PIECE: Final = 16_384
"""Largest piece in bytes that OpenSSL is given at once; it keeps as much memory for the
connection."""
MIN_PIECE: Final = 1_024
"""Size in bytes of the first piece, and of one after a piece without data: forty key updates, a
millisecond."""
MAX_RECORDS: Final = 256
"""Largest number of records in one pass; data in more of them are cut so fine that each costs."""
MAX_BARREN: Final = 65_536
"""Largest number of bytes without any data: nobody has a use for so many key updates in a row."""
MAX_OF_A_GREETING: Final = 32_768
"""Largest handshake in bytes: Java's limit of one of its messages; chains of certificates take a
fifth."""
MAX_UNREAD_ANSWERS: Final = 16
"""Largest number of answers to key updates while the peer does not read what it is sent."""


class Pace:
    """Pace of the decryption of one connection."""

    __slots__ = ("barren", "piece")

    def __init__(self) -> None:
        self.piece = MIN_PIECE
        """Number of bytes to be given to OpenSSL at once."""
        self.barren = 0
        """Number of bytes of ciphertext since the last data."""

    def is_worth(self, taken: int, gained: int) -> bool:
        """Judge the result of a piece: `gained` bytes of data of `taken` bytes of ciphertext.

        False: another connection is next. A part of a record cannot bring data yet, so where data
        came before there is patience for a whole one.
        """
        self.barren += taken
        if not gained:
            if self.barren > MAX_RECORD:
                self.piece = MIN_PIECE
            return self.barren <= min(4 * self.piece, MAX_RECORD)
        worth = 2 * gained >= self.barren
        self.piece = min(2 * self.piece, PIECE) if worth else MIN_PIECE
        self.barren = 0
        return worth

    @property
    def is_hopeless(self) -> bool:
        """Return whether so much brought no data that the connection must be closed."""
        return self.barren > MAX_BARREN
