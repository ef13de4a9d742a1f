"""Messages of SCRAM (RFC 5802 section 7): readers and writers.

Readers return None for a message that does not match the grammar. It differs from Kafka's, and in
one point from the RFC's:

- `m=` (a mandatory extension) is rejected, as RFC 5802 section 5.1 demands; Kafka ignores it.
- User names may have any character, as in the RFC; Kafka allows ASCII only.
- Names of extensions have one or more letters, unlike in the RFC, as Kafka's `tokenauth` needs.
"""

import binascii
import re
from typing import Final, NamedTuple, final

MAX_MESSAGE_BYTES: Final = 16 * 1024
"""Maximum size of a message in bytes: an unfinished exchange keeps its first message in memory, and
unauthenticated clients must not take `sasl.server.max.receive.size` (512 KiB) of it per connection.
Messages of real clients have a few hundred bytes."""

_SASLNAME: Final = r"(?:[^\0=,]|=2C|=3D)+"
_NONCE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS: Final = r"(?:,[A-Za-z]+=[^\0,]+)*"
_BASE64: Final = r"[A-Za-z0-9+/]+={0,2}"

_CLIENT_FIRST: Final = re.compile(
    rf"(?P<gs2>n,(?:a=(?P<authzid>{_SASLNAME}))?,)"
    rf"(?P<bare>n=(?P<username>{_SASLNAME}),r=(?P<nonce>{_NONCE})(?P<extensions>{_EXTENSIONS}))"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<without_proof>c=(?P<channel_binding>{_BASE64}),r=(?P<nonce>{_NONCE}))"
    rf",p=(?P<proof>{_BASE64})"
)
_SERVER_FIRST: Final = re.compile(
    rf"r=(?P<nonce>{_NONCE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>[1-9][0-9]{{0,8}}){_EXTENSIONS}"
)
_SERVER_FINAL: Final = re.compile(rf"v=(?P<verifier>{_BASE64}){_EXTENSIONS}")


class ClientFirst(NamedTuple):
    """First message of the client: `n,a=authzid,n=user,r=nonce,…`."""

    gs2_header: str
    """GS2 header, which `c=` of the last message must repeat."""
    authorization_id: str | None
    username: str
    nonce: str
    bare: str
    """Message without the GS2 header, which the proof signs."""
    extensions: tuple[tuple[str, str], ...]


@final
class ClientFinal:
    """Last message of the client, with the proof: `c=…,r=…,p=…`."""

    __slots__ = ("channel_binding", "nonce", "proof", "without_proof")

    def __init__(
        self, *, channel_binding: str, nonce: str, without_proof: str, proof: bytes
    ) -> None:
        self.channel_binding: Final = channel_binding
        self.nonce: Final = nonce
        self.without_proof: Final = without_proof
        self.proof: Final = proof


class ServerFirst(NamedTuple):
    """First message of the server, with salt and iterations: `r=…,s=…,i=…`."""

    nonce: str
    salt: bytes
    iterations: int


def read_client_first(message: bytes) -> ClientFirst | None:
    """Parse the client's first message; return None if it is invalid."""
    match = _match(_CLIENT_FIRST, message)
    if match is None:
        return None
    gs2_header, authorization_id, bare, username, nonce, written = match.groups()
    pairs = (pair.partition("=") for pair in written.split(",")[1:])
    extensions = tuple((name, value) for name, _, value in pairs) if written else ()
    if any(name == "m" for name, _ in extensions):
        return None
    return ClientFirst(
        gs2_header=gs2_header,
        authorization_id=None if authorization_id is None else decode_saslname(authorization_id),
        username=decode_saslname(username),
        nonce=nonce,
        bare=bare,
        extensions=extensions,
    )


def read_client_final(message: bytes) -> ClientFinal | None:
    """Parse the client's last message; return None if it is invalid, or has extensions, which no
    known client sends."""
    match = _match(_CLIENT_FINAL, message)
    if match is None:
        return None
    without_proof, channel_binding, nonce, written = match.groups()
    proof = decode_base64(written)
    if proof is None:
        return None
    return ClientFinal(
        channel_binding=channel_binding, nonce=nonce, without_proof=without_proof, proof=proof
    )


def read_server_first(message: bytes) -> ServerFirst | None:
    """Parse the server's first message; return None if it is invalid."""
    match = _match(_SERVER_FIRST, message)
    if match is None:
        return None
    salt = decode_base64(match["salt"])
    if salt is None:
        return None
    return ServerFirst(nonce=match["nonce"], salt=salt, iterations=int(match["iterations"]))


def read_server_final(message: bytes) -> bytes | None:
    """Return the server's signature; None if the message is an error (`e=…`), or invalid."""
    match = _match(_SERVER_FINAL, message)
    return None if match is None else decode_base64(match["verifier"])


def encode_saslname(name: str) -> str:
    """Escape a name (RFC 5802 section 5.1): `=2C` for a comma, `=3D` for an equals sign."""
    return name.replace("=", "=3D").replace(",", "=2C")


def decode_saslname(name: str) -> str:
    """Undo `encode_saslname`; the grammar permits no other escapes."""
    return name.replace("=2C", ",").replace("=3D", "=")


def encode_base64(data: bytes) -> str:
    """Return canonical base64."""
    return binascii.b2a_base64(data, newline=False).decode()


def decode_base64(text: str) -> bytes | None:
    """Decode base64; return None unless it is canonical, so that two texts never stand for the same
    bytes."""
    try:
        data = binascii.a2b_base64(text)
    except ValueError:  # includes binascii.Error, and the error for a character outside ASCII
        return None
    return data if encode_base64(data) == text else None


def _match(pattern: re.Pattern[str], message: bytes) -> re.Match[str] | None:
    if len(message) > MAX_MESSAGE_BYTES:
        return None
    try:
        text = message.decode()
    except UnicodeDecodeError:
        return None
    return pattern.fullmatch(text)
