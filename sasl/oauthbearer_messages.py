"""The messages of OAUTHBEARER (RFC 7628 section 3), in the grammar that Kafka gives them.

Kafka 4.1 `OAuthBearerClientInitialResponse`: the GS2 header is `n,` (no channel binding), names of
extensions are letters only, the scheme word is case-insensitive and more than one blank may follow.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sasl.scram_messages import decode_saslname

MAX_PAIRS: Final = 64
"""Of a message, the token among them. Kafka has no such bound: half a megabyte of separators, which
any stranger can send, would hold everybody up for a tenth of a second."""

_GS2_HEADER: Final = re.compile(r"n,(?:a=(?P<authzid>(?:[^\0=,]|=2C|=3D)+))?,")
_PAIR: Final = re.compile(r"(?P<name>[A-Za-z]+)=(?P<value>[\x21-\x7e \t\r\n]+)")
_BEARER: Final = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +(?P<token>[-_~+/.a-zA-Z0-9]+=*)")
_SEPARATOR: Final = "\x01"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientInitialResponse:
    """What a client says first: a token, and perhaps more."""

    token: str = field(repr=False)
    authorization_id: str | None
    extensions: Mapping[str, str]
    """SASL extensions (KIP-342); no extension has a meaning yet, as with Kafka's own validator."""


def read_client_initial_response(message: bytes) -> ClientInitialResponse | None:
    """Read the client's message; None: it breaks the grammar."""
    try:
        header, *pairs = message.decode().split(_SEPARATOR, MAX_PAIRS + 2)
    except UnicodeDecodeError:
        return None
    gs2 = _GS2_HEADER.fullmatch(header)
    # The message ends in two separators: one ends the last pair, one ends the list.
    if gs2 is None or len(pairs) < 3 or pairs[-2:] != ["", ""]:
        return None
    matches = [_PAIR.fullmatch(pair) for pair in pairs[:-2]]
    values = {match["name"]: match["value"] for match in matches if match is not None}
    if len(values) != len(matches):  # a pair that is none, or a name twice
        return None
    bearer = _BEARER.fullmatch(values.pop("auth", ""))
    if bearer is None:
        return None
    authzid = gs2["authzid"]
    return ClientInitialResponse(
        token=bearer["token"],
        authorization_id=None if authzid is None else decode_saslname(authzid),
        extensions=values,
    )


def client_initial_response(token: str, extensions: Mapping[str, str] | None = None) -> bytes:
    """Write the message with which a client logs in; extension names are letters, not `auth`."""
    pairs = [f"{name}={value}{_SEPARATOR}" for name, value in (extensions or {}).items()]
    return f"n,,{_SEPARATOR}auth=Bearer {token}{_SEPARATOR}{''.join(pairs)}{_SEPARATOR}".encode()
