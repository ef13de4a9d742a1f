"""Reasons for which a client is not read."""

from typing import Final


class PauseReason:
    """Reasons for which a client is not read, as bits. No IntFlag, which is slow to test."""

    NO_BROKER: Final = 1
    WAITING: Final = 2
    """For keys, for the store, or for what the broker says of topics."""
    BROKER_FULL: Final = 4
    CLIENT_FULL: Final = 8
    """It does not read its answers."""
    IN_FLIGHT: Final = 16
    CLOSING: Final = 32
    THROTTLED: Final = 64
    """It used more than its quota."""
    AUTHORIZING: Final = 128
    """Its request is long, and is judged in steps."""
    NO_MEMORY: Final = 256
    """Its request is long, and others' fill the memory that there is for such."""
    LOGIN: Final = 512
    """The proxy logs in to the broker."""
    TURN: Final = 1_024
    """Much was done for it, and others have their turn first."""
