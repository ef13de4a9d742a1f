"""Messages of OAUTHBEARER (RFC 7628 section 3), in Kafka's grammar.

According to `OAuthBearerClientInitialResponse` of Kafka 4.1, the GS2 header is `n,` (no channel
binding), names of extensions are letters only, and the scheme is case-insensitive and may be
followed by several blanks.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sasl.scram_messages import decode_saslname

MAX_PAIRS: Final = 64
"""Maximum number of pairs in a message, including the token. Kafka has no such bound: half a
megabyte of separators, which any client may send, would delay all connections by a tenth of a
second."""

_GS2_HEADER: Final = re.compile(r"n,(?:a=(?P<authzid>(?:[^\0=,]|=2C|=3D)+))?,")
_PAIR: Final = re.compile(r"(?P<name>[A-Za-z]+)=(?P<value>[\x21-\x7e \t\r\n]+)")
_BEARER: Final = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +(?P<token>[-_~+/.a-zA-Z0-9]+=*)")
_SEPARATOR: Final = "\x01"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientInitialResponse:
    """First message of a client: a token, and possibly extensions."""

    token: str = field(repr=False)
    authorization_id: str | None
    extensions: Mapping[str, str]
    """SASL extensions (KIP-342): the client's own word, which decides nothing."""


def read_client_initial_response(message: bytes) -> ClientInitialResponse | None:
    """Parse the client's message; return None if it does not match the grammar."""
    try:
        header, *pairs = message.decode().split(_SEPARATOR, MAX_PAIRS + 2)
    except UnicodeDecodeError:
        return None
    gs2 = _GS2_HEADER.fullmatch(header)
    # The message ends with two separators: one ends the last pair, one the list
    if gs2 is None or len(pairs) < 3 or pairs[-2:] != ["", ""]:
        return None
    matches = [_PAIR.fullmatch(pair) for pair in pairs[:-2]]
    values = {match["name"]: match["value"] for match in matches if match is not None}
    if len(values) != len(matches):  # an invalid pair, or a duplicate name
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
    """Return a client's first message; names of extensions consist of letters, and none is
    `auth`."""
    pairs = [f"{name}={value}{_SEPARATOR}" for name, value in (extensions or {}).items()]
    return f"n,,{_SEPARATOR}auth=Bearer {token}{_SEPARATOR}{''.join(pairs)}{_SEPARATOR}".encode()
