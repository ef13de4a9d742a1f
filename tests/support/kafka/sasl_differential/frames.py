"""Programs with malformed frames, before and after authentication."""

import struct
from collections.abc import Callable

from tests.support.kafka.sasl_differential.transcript import (
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Actor,
    bearer,
    program,
)
from tests.support.kafka.wire_client import API_VERSIONS, api_versions_fields, is_flexible
from tests.support.messages import request_body

_LIMIT = 524_288  # sasl.server.max.receive.size
_SOCKET_LIMIT = 104_857_600  # socket.request.max.bytes


def _size(number: int) -> bytes:
    return struct.pack(">i", number)


_BROKEN: dict[str, bytes] = {
    "negative size": _size(-1),
    "most negative size": _size(-(2**31)),
    "zero size": _size(0),
    "largest size": _size(2**31 - 1),
    "a byte over the socket's limit": _size(_SOCKET_LIMIT + 1),
    "seven bytes": _size(7) + b"\x00\x12\x00\x00\x00\x00\x00",
    "one byte": _size(1) + b"\x00",
    "four bytes": _size(4) + b"\x00\x12\x00\x00",
    "TLS ClientHello": bytes.fromhex("1603010200010001fc0303"),
    "HTTP": b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
}


def _states() -> dict[str, Callable[[Actor], None]]:
    return {
        "before handshake": lambda _: None,
        "after handshake": lambda actor: actor.handshake("OAUTHBEARER"),
        "after login": lambda actor: actor.oauth(actor.issuer.mint()),
    }


def _broken_frames() -> None:
    for state, reach in _states().items():
        for label, data in _BROKEN.items():

            @program(f"frame {state}: {label}")
            def _(
                actor: Actor,
                d: bytes = data,
                r: Callable[[Actor], None] = reach,
            ) -> None:
                r(actor)
                actor.raw(d, "bytes")
                actor.ends()

        @program(f"frame {state}: truncated, then FIN")
        def _(actor: Actor, r: Callable[[Actor], None] = reach) -> None:
            r(actor)
            actor.raw(_size(100) + b"\x00\x12\x00", "the beginning of a frame, FIN")
            actor.client.finish_sending()
            actor.ends()

        @program(f"frame {state}: half a size and silence")
        def _(actor: Actor, r: Callable[[Actor], None] = reach) -> None:
            r(actor)
            actor.raw(b"\x00\x00", "half a size")
            actor.ends()

        for key, version in ((999, 0), (-1, 0), (93, 0), (7, 0), (4, 5), (24, 4), (56, 1)):

            @program(f"frame {state}: unsupported API {key} v{version}")
            def _(
                actor: Actor,
                k: int = key,
                v: int = version,
                r: Callable[[Actor], None] = reach,
            ) -> None:
                r(actor)
                frame = struct.pack(">hhih", k, v, 1, 1) + b"c"
                actor.raw(_size(len(frame)) + frame, f"API {k} v{v}")
                actor.ends()


_broken_frames()


@program("frame before handshake: a byte over sasl.server.max.receive.size")
def _(actor: Actor) -> None:
    actor.raw(_size(_LIMIT + 1), "its size alone")
    actor.ends()


@program("frame before handshake: exactly sasl.server.max.receive.size")
def _(actor: Actor) -> None:
    actor.raw(_size(_LIMIT), "its size alone")
    actor.ends()


@program("frame after handshake: a byte over sasl.server.max.receive.size")
def _(actor: Actor) -> None:
    actor.handshake("OAUTHBEARER")
    actor.raw(_size(_LIMIT + 1), "its size alone")
    actor.ends()


@program("frame after raw handshake: a byte over sasl.server.max.receive.size")
def _(actor: Actor) -> None:
    actor.handshake("OAUTHBEARER", 0)
    actor.raw(_size(_LIMIT + 1), "its size alone")
    actor.ends()


@program("frame in reauth: a byte over sasl.server.max.receive.size", listener="SHORT")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint())
    actor.handshake("OAUTHBEARER")
    actor.raw(_size(_LIMIT + 1), "its size alone")
    actor.ends()


@program("reauth handshake itself larger than sasl.server.max.receive.size", listener="SHORT")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint())
    body = request_body(17, 1, mechanism="OAUTHBEARER") + b"\x00" * _LIMIT
    actor.ask(17, 1, body)
    actor.ends()


@program("frame of SASL_AUTHENTICATE filled to the limit")
def _(actor: Actor) -> None:
    actor.handshake("OAUTHBEARER")
    header_bytes = 2 + 2 + 4 + 2 + len("program")
    auth_bytes = b"x" * (_LIMIT - header_bytes - 4)
    body = struct.pack(">i", len(auth_bytes)) + auth_bytes
    actor.ask(SASL_AUTHENTICATE, 1, body, label="SaslAuthenticate v1 of 524288 bytes")
    actor.ends()


@program("frames in one segment, byte by byte")
def _(actor: Actor) -> None:
    frame = struct.pack(">hhih", 18, 0, 1, -1)
    for index, byte in enumerate(_size(len(frame)) + frame):
        actor.client.raw(bytes([byte]))
        if index == 0:
            actor.note("ApiVersions v0 sent byte by byte")
    actor.hear(18, 0)


def _too_new() -> None:
    for key, version in ((3, 99), (0, 99), (1, 99), (10, 99), (17, 2), (60, 99), (3, -1)):

        @program(f"after login: API {key} v{version} too new")
        def _(actor: Actor, k: int = key, v: int = version) -> None:
            actor.oauth(actor.issuer.mint())
            frame = struct.pack(">hhih", k, v, 1, 1) + b"c" + b"\x00" * 20
            actor.raw(_size(len(frame)) + frame, f"API {k} v{v}")
            actor.ends()


_too_new()


@program("after login: Metadata with bytes behind the body")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint())
    body = request_body(
        3, 12, topics=[], allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    actor.ask(3, 12, body + b"behind")
    actor.metadata()


@program("after login: Metadata cut short")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint())
    actor.ask(3, 12, b"\x05")
    actor.ends()


@program("after login: client sends FIN behind a request")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint())
    actor.send(3, 12)
    actor.client.finish_sending()
    actor.hear(3, 12)
    actor.ends()


# ApiVersions, at all times


def _api_versions() -> None:
    for version in range(6):

        @program(f"ApiVersions v{version} before handshake")
        def _(actor: Actor, v: int = version) -> None:
            actor.api_versions(v)
            actor.oauth(actor.issuer.mint())
            actor.api_versions(v)

    for version in (6, 99):

        @program(f"ApiVersions too new v{version}")
        def _(actor: Actor, v: int = version) -> None:
            actor.api_versions(v)
            actor.api_versions(3)
            actor.oauth(actor.issuer.mint())
            actor.api_versions(v)
            actor.metadata()

    meant = {
        "another cluster": ("other", 1),
        "another cluster, and no node": ("other", -1),
        "a cluster of 32,767 letters, and node -2": ("k" * 32_767, -2),
        "no cluster, and another node": (None, 1_000),
        "neither": (None, -1),
    }
    for label, (cluster_id, node_id) in meant.items():
        fields = {"cluster_id": cluster_id, "node_id": node_id, **api_versions_fields()}

        @program(f"ApiVersions v5 that means {label}")
        def _(actor: Actor, body: bytes = request_body(API_VERSIONS, 5, **fields)) -> None:
            actor.oauth(actor.issuer.mint())
            actor.api_versions(5, body=body)
            actor.api_versions(5, body=body)
            actor.metadata()

        @program(f"ApiVersions v5 that means {label}, before handshake")
        def _(actor: Actor, body: bytes = request_body(API_VERSIONS, 5, **fields)) -> None:
            actor.api_versions(5, body=body)
            actor.oauth(actor.issuer.mint())

    bad = {
        "empty name": ("", "1.0"),
        "blank in name": ("my client", "1.0"),
        "leading dash": ("-client", "1.0"),
        "trailing dot": ("client.", "1.0"),
        "slash in version": ("client", "1/0"),
        "unicode": ("clïent", "1.0"),
        "empty version": ("client", ""),
    }
    for label, (name, version_text) in bad.items():

        @program(f"ApiVersions v3 software name: {label}")
        def _(actor: Actor, n: str = name, t: str = version_text) -> None:
            body = request_body(18, 3, client_software_name=n, client_software_version=t)
            actor.api_versions(3, body=body)
            actor.api_versions(3)
            actor.oauth(actor.issuer.mint())
            actor.api_versions(3, body=body)
            actor.metadata()


_api_versions()


@program("ApiVersions v3 software name of one letter and dashes inside")
def _(actor: Actor) -> None:
    for name in ("a", "my-client.name", "0"):
        body = request_body(18, 3, client_software_name=name, client_software_version="1-2.3")
        actor.oauth(actor.issuer.mint()) if name == "my-client.name" else None
        actor.api_versions(3, body=body)


@program("ApiVersions v3 cut short")
def _(actor: Actor) -> None:
    actor.api_versions(3, body=b"\x09harn")
    actor.ends()


@program("ApiVersions v3 with an empty body")
def _(actor: Actor) -> None:
    actor.api_versions(3, body=b"")
    actor.ends()


@program("ApiVersions v0 with bytes behind the body")
def _(actor: Actor) -> None:
    actor.api_versions(0, body=b"behind")
    actor.handshake("OAUTHBEARER")


@program("ApiVersions too new with garbage")
def _(actor: Actor) -> None:
    actor.api_versions(77, body=b"\xff" * 9)
    actor.handshake("OAUTHBEARER")


@program("ApiVersions negative version")
def _(actor: Actor) -> None:
    actor.ask(API_VERSIONS, -1, b"", flexible=False)
    actor.ends()


@program("ApiVersions twice before handshake")
def _(actor: Actor) -> None:
    actor.api_versions(3)
    actor.api_versions(3)
    actor.ends()


@program("ApiVersions between handshake and token")
def _(actor: Actor) -> None:
    actor.handshake("OAUTHBEARER")
    actor.api_versions(3)
    actor.ends()


@program("ApiVersions too new between handshake and token")
def _(actor: Actor) -> None:
    actor.handshake("OAUTHBEARER")
    actor.api_versions(9)
    actor.ends()


@program("ApiVersions many after login")
def _(actor: Actor) -> None:
    actor.api_versions(0)
    actor.oauth(actor.issuer.mint())
    for version in (0, 1, 2, 3, 4, 4):
        actor.api_versions(version)


# --- headers


@program("null client id")
def _(actor: Actor) -> None:
    actor.ask(API_VERSIONS, 0, b"", client_id=None)
    actor.ask(SASL_HANDSHAKE, 1, request_body(17, 1, mechanism="OAUTHBEARER"), client_id=None)
    actor.authenticate(bearer(actor.issuer.mint()))
    actor.metadata(client_id=None)


@program("client id empty, then of 32,767 bytes")
def _(actor: Actor) -> None:
    actor.ask(API_VERSIONS, 0, b"", client_id="")
    body = request_body(17, 1, mechanism="OAUTHBEARER")
    actor.ask(SASL_HANDSHAKE, 1, body, client_id="c" * 32_767)
    actor.authenticate(bearer(actor.issuer.mint()))
    actor.metadata(client_id="d" * 32_767)


@program("client id that is no UTF-8")
def _(actor: Actor) -> None:
    frame = struct.pack(">hhih", 18, 0, 5, 3) + b"\xff\xfe\xfd"
    actor.raw(struct.pack(">i", len(frame)) + frame, "ApiVersions v0, client id ff fe fd")
    actor.hear(API_VERSIONS, 0)
    actor.handshake("OAUTHBEARER")


@program("client id longer than the frame")
def _(actor: Actor) -> None:
    frame = struct.pack(">hhih", 18, 0, 5, 300) + b"abc"
    actor.raw(struct.pack(">i", len(frame)) + frame, "ApiVersions v0, client id cut short")
    actor.hear(API_VERSIONS, 0)


@program("client id of length -2")
def _(actor: Actor) -> None:
    frame = struct.pack(">hhih", 18, 0, 5, -2)
    actor.raw(struct.pack(">i", len(frame)) + frame, "ApiVersions v0, client id length -2")
    actor.hear(API_VERSIONS, 0)


@program("request header v2 with an unknown tagged field")
def _(actor: Actor) -> None:
    assert is_flexible(API_VERSIONS, 3)
    body = request_body(18, 3, client_software_name="a", client_software_version="1")
    frame = struct.pack(">hhih", 18, 3, 1, 1) + b"c" + b"\x01\x05\x02ab" + body
    actor.raw(struct.pack(">i", len(frame)) + frame, "ApiVersions v3, tagged header")
    actor.hear(API_VERSIONS, 3)
    actor.handshake("OAUTHBEARER")
