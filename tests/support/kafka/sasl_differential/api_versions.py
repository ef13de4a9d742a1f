"""ApiVersions in every version and state, and the request header's optional parts."""

import struct

from tests.support.kafka.sasl_differential.transcript import (
    SASL_HANDSHAKE,
    Actor,
    bearer,
    program,
)
from tests.support.kafka.wire_client import API_VERSIONS, is_flexible
from tests.support.messages import request_body


def _api_versions() -> None:
    for version in range(5):

        @program(f"ApiVersions v{version} before handshake")
        def _(actor: Actor, v: int = version) -> None:
            actor.api_versions(v)
            actor.oauth(actor.issuer.mint())
            actor.api_versions(v)

    for version in (5, 99):

        @program(f"ApiVersions too new v{version}")
        def _(actor: Actor, v: int = version) -> None:
            actor.api_versions(v)
            actor.api_versions(3)
            actor.oauth(actor.issuer.mint())
            actor.api_versions(v)
            actor.metadata()

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
