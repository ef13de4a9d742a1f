"""Rules of `reauth.enforcement: auto` that the proxy and the report share."""

import re
from enum import StrEnum
from typing import Final

REAUTHENTICATIONS: Final = 3
"""Default number of re-authentications in time that make a client ready."""
WINDOW_MS: Final = 86_400_000
"""Default of the shortest time from the first to the last of them."""
EVIDENCE_MAX_AGE_MS: Final = 2_592_000_000
"""Default of the age at which evidence no longer counts."""
MAX_CLIENTS: Final = 32
"""Maximum number of kinds of clients of a principal; with more, it is undecided."""
MAX_CHARACTERS: Final = 128
"""Maximum length of a client id, or of the name or version of a client's software."""
AUTO: Final = "auto"
"""Author of the decisions that no operator made."""

_HEX, _WORD, _POD = "[0-9A-Fa-f]", "[0-9A-Za-z]", "[bcdfghjklmnpqrstvwxz2456789]"
CHANGING: Final = (
    (f"{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{12}}", "*"),
    (rf"-{_POD}{{8,10}}-{_POD}{{5}}\b", "-*"),
    (f"{_WORD}*[0-9][A-Za-z]{_WORD}*", "*"),
    ("[0-9]+", "*"),
)
"""Patterns of the changing parts of client ids, replaced one after the other: UUIDs, suffixes of
pods' names in Kubernetes, random words, numbers. They mean the same to Python, Java and RE2."""
_CHANGING: Final = [(re.compile(one, re.ASCII), stable) for one, stable in CHANGING]


def stable_id(client_id: str) -> str:
    """Return a client id with `*` for its changing parts."""
    for pattern, stable in _CHANGING:
        client_id = pattern.sub(stable, client_id)
    return client_id


class Stage(StrEnum):
    """Progress of a principal, from the first to the last."""

    SEEN = "seen"
    """A client cannot re-authenticate in time."""
    UNDECIDED = "undecided"
    """There is no evidence for or against a client."""
    CAPABLE = "capable"
    """All clients re-authenticated in time, but not often or not long enough."""
    DEMOTED = "demoted"
    """The principal was enforced, and is probed until there is new evidence."""
    READY = "ready"
    """The principal waits for its promotion."""
    ENFORCED = "enforced"
