"""Request headers: parsed, and written for the proxy's own requests."""

import struct
from typing import Final, final

from proxy.errors import ClientFault
from proxy.wire.apis import API_VERSIONS, APIS, is_flexible
from proxy.wire.primitives import INT16, INT32, Malformed, skip_tags, write_string

_HEADER = struct.Struct(">hhih")

CLIENT_ID: Final = "reauth-proxy"
"""Client id of the proxy's own requests to brokers."""
MAX_CHARACTERS_KEPT = 256
"""Maximum number of characters of a client id or software name that are kept: clients choose them,
and each connection stores them."""


@final
class Request:
    """Complete request frame."""

    __slots__ = (
        "api_key",
        "api_version",
        "body_at",
        "client_id",
        "content",
        "correlation_id",
        "flexible",
    )

    def __init__(
        self,
        *,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        content: bytes,
        body_at: int,
        flexible: bool,
    ) -> None:
        self.api_key: Final = api_key
        self.api_version: Final = api_version
        self.correlation_id: Final = correlation_id
        self.client_id: Final = client_id
        """First `MAX_CHARACTERS_KEPT` characters of the client id; like Kafka, U+FFFD replaces
        invalid UTF-8."""
        self.content: Final = content
        """Header and body: everything after the size field."""
        self.body_at: Final = body_at
        """Position of the body in `content`."""
        self.flexible: Final = flexible
        """True if header and body have tagged fields (KIP-482)."""

    @property
    def body(self) -> bytes:
        """Body: the bytes after the header."""
        return self.content[self.body_at :]


def parse_request(content: bytes) -> Request:
    """Parse the header of `content`. Raises ClientFault if it does not parse.

    Any negative length is a null client id, as in Kafka's `RequestHeaderData`.
    """
    try:
        api_key, api_version, correlation_id, length = _HEADER.unpack_from(content)
        at = _HEADER.size + max(length, 0)
        if at > len(content):
            raise ClientFault("client id beyond the frame")
        client_id = None if length < 0 else kept_characters(content[_HEADER.size : at])
        flexible = api_key in APIS and is_flexible(api_key, api_version)
        body_at = skip_tags(content, at) if flexible else at
    except (struct.error, Malformed) as error:
        raise ClientFault("request header does not parse") from error
    if body_at > len(content):
        raise ClientFault("request header beyond the frame")
    return Request(
        api_key=api_key,
        api_version=api_version,
        correlation_id=correlation_id,
        client_id=client_id,
        content=content,
        body_at=body_at,
        flexible=flexible,
    )


def kept_characters(text: bytes) -> str:
    """Return the kept part of a client id; like Kafka, U+FFFD replaces invalid UTF-8."""
    # A character has four bytes at most
    return text[: 4 * MAX_CHARACTERS_KEPT].decode(errors="replace")[:MAX_CHARACTERS_KEPT]


def response_frame(request: Request, body: bytes) -> bytes:
    """Return the complete frame that answers `request`.

    The header of an ApiVersions response is never flexible (KIP-511).
    """
    header = INT32.pack(request.correlation_id)
    if request.flexible and request.api_key != API_VERSIONS:
        header += b"\0"
    return INT32.pack(len(header) + len(body)) + header + body


def request_frame(
    api_key: int, api_version: int, correlation_id: int, client_id: str, body: bytes
) -> bytes:
    """Return the complete frame of one of the proxy's own requests."""
    header = (
        INT16.pack(api_key)
        + INT16.pack(api_version)
        + INT32.pack(correlation_id)
        + write_string(client_id, flexible=False)
        + (b"\0" if is_flexible(api_key, api_version) else b"")
    )
    return INT32.pack(len(header) + len(body)) + header + body
