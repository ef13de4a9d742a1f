"""Programs with malformed frames, before and after authentication."""

import struct
from itertools import product

from tests.support.kafka.sasl_differential.transcript import (
    METADATA,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Act,
    Actor,
    programs,
)
from tests.support.kafka.wire_client import API_VERSIONS, api_versions_fields
from tests.support.messages import request_body

_LIMIT = 524_288  # sasl.server.max.receive.size
_SOCKET_LIMIT = 104_857_600  # socket.request.max.bytes
_HANDSHAKE = request_body(SASL_HANDSHAKE, 1, mechanism="OAUTHBEARER")


def _size(number: int) -> bytes:
    return struct.pack(">i", number)


def _frame(key: int, version: int, rest: bytes = b"", number: int = 1, name_size: int = 1) -> bytes:
    content = struct.pack(">hhih", key, version, number, name_size) + rest
    return _size(len(content)) + content


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
_STATES: dict[str, Act] = {
    "before handshake": lambda _: None,
    "after handshake": lambda a: a.handshake("OAUTHBEARER"),
    "after login": lambda a: a.oauth(),
}
_UNSUPPORTED = ((999, 0), (-1, 0), (93, 0), (7, 0), (4, 5), (24, 4), (56, 1))
_TOO_NEW = ((3, 99), (0, 99), (1, 99), (10, 99), (17, 2), (60, 99), (3, -1))


def _then(reach: Act, data: bytes, label: str = "bytes", *, fin: bool = False) -> Act:
    """Reach a state, send these bytes, and record whether the connection is closed."""
    return lambda a: (reach(a), a.raw(data, label), a.finish_sending() if fin else None, a.ends())


for _state, _reach in _STATES.items():
    _name = f"frame {_state}: "
    programs({_name + label: _then(_reach, data) for label, data in _BROKEN.items()})
    _beginning = (_size(100) + b"\x00\x12\x00", "the beginning of a frame, FIN")
    programs(
        {
            _name + "truncated, then FIN": _then(_reach, *_beginning, fin=True),
            _name + "half a size and silence": _then(_reach, b"\x00\x00", "half a size"),
        }
    )
    programs(
        {
            f"{_name}unsupported API {k} v{v}": _then(_reach, _frame(k, v, b"c"), f"API {k} v{v}")
            for k, v in _UNSUPPORTED
        }
    )

_OVER = (_size(_LIMIT + 1), "its size alone")


def _filled_to_the_limit(a: Actor) -> None:
    a.handshake("OAUTHBEARER")
    header_bytes = 2 + 2 + 4 + 2 + len("program")
    auth_bytes = b"x" * (_LIMIT - header_bytes - 4)
    body = _size(len(auth_bytes)) + auth_bytes
    a.ask(SASL_AUTHENTICATE, 1, body, label="SaslAuthenticate v1 of 524288 bytes")
    a.ends()


def _byte_by_byte(a: Actor) -> None:
    for index, byte in enumerate(_frame(API_VERSIONS, 0, name_size=-1)):
        a.client.raw(bytes([byte]))
        if index == 0:
            a.note("ApiVersions v0 sent byte by byte")
    a.hear(API_VERSIONS, 0)


_METADATA = request_body(
    METADATA,
    12,
    topics=[],
    allow_auto_topic_creation=False,
    include_topic_authorized_operations=False,
)

programs(
    {
        "frame before handshake: a byte over sasl.server.max.receive.size": _then(
            _STATES["before handshake"], *_OVER
        ),
        "frame before handshake: exactly sasl.server.max.receive.size": _then(
            _STATES["before handshake"], _size(_LIMIT), "its size alone"
        ),
        "frame after handshake: a byte over sasl.server.max.receive.size": _then(
            _STATES["after handshake"], *_OVER
        ),
        "frame after raw handshake: a byte over sasl.server.max.receive.size": _then(
            lambda a: a.handshake("OAUTHBEARER", 0), *_OVER
        ),
        "frame of SASL_AUTHENTICATE filled to the limit": _filled_to_the_limit,
        "frames in one segment, byte by byte": _byte_by_byte,
        **{
            f"after login: API {k} v{v} too new": _then(
                _STATES["after login"], _frame(k, v, b"c" + bytes(20)), f"API {k} v{v}"
            )
            for k, v in _TOO_NEW
        },
        "after login: Metadata with bytes behind the body": lambda a: (
            a.oauth(),
            a.ask(METADATA, 12, _METADATA + b"behind"),
            a.metadata(),
        ),
        "after login: Metadata cut short": lambda a: (
            a.oauth(),
            a.ask(METADATA, 12, b"\x05"),
            a.ends(),
        ),
        "after login: client sends FIN behind a request": lambda a: (
            *(a.oauth(), a.send(METADATA, 12), a.finish_sending()),
            *(a.hear(METADATA, 12), a.ends()),
        ),
    }
)
programs(
    {
        "frame in reauth: a byte over sasl.server.max.receive.size": _then(
            lambda a: (a.oauth(), a.handshake("OAUTHBEARER")), *_OVER
        ),
        "reauth handshake itself larger than sasl.server.max.receive.size": lambda a: (
            *(a.oauth(), a.ask(17, 1, _HANDSHAKE + bytes(_LIMIT)), a.ends()),
        ),
    },
    listener="SHORT",
)

# --- ApiVersions, at all times


def _software(name: str, version: str = "1") -> bytes:
    return request_body(API_VERSIONS, 3, client_software_name=name, client_software_version=version)


_MEANT = {
    "another cluster": ("other", 1),
    "another cluster, and no node": ("other", -1),
    "a cluster of 32,767 letters, and node -2": ("k" * 32_767, -2),
    "no cluster, and another node": (None, 1_000),
    "neither": (None, -1),
}
_BAD_SOFTWARE = {
    "empty name": ("", "1.0"),
    "blank in name": ("my client", "1.0"),
    "leading dash": ("-client", "1.0"),
    "trailing dot": ("client.", "1.0"),
    "slash in version": ("client", "1/0"),
    "unicode": ("clïent", "1.0"),
    "empty version": ("client", ""),
}


def _known(version: int) -> Act:
    return lambda a: (a.api_versions(version), a.oauth(), a.api_versions(version))


def _newer(version: int) -> Act:
    return lambda a: (
        *(a.api_versions(version), a.api_versions(3), a.oauth()),
        *(a.api_versions(version), a.metadata()),
    )


def _meaning(cluster_id: str | None, node_id: int, *, logs_in_first: bool) -> Act:
    fields = {"cluster_id": cluster_id, "node_id": node_id, **api_versions_fields()}
    body = request_body(API_VERSIONS, 5, **fields)
    if not logs_in_first:
        return lambda a: (a.api_versions(5, body=body), a.oauth())
    return lambda a: (
        *(a.oauth(), a.api_versions(5, body=body), a.api_versions(5, body=body), a.metadata()),
    )


def _bad_software(name: str, version: str) -> Act:
    body = _software(name, version)
    return lambda a: (
        *(a.api_versions(3, body=body), a.api_versions(3), a.oauth()),
        *(a.api_versions(3, body=body), a.metadata()),
    )


programs({f"ApiVersions v{version} before handshake": _known(version) for version in range(6)})
programs({f"ApiVersions too new v{version}": _newer(version) for version in (6, 99)})
programs(
    {
        f"ApiVersions v5 that means {label}{when}": _meaning(*meant, logs_in_first=not when)
        for (label, meant), when in product(_MEANT.items(), ("", ", before handshake"))
    }
)
programs(
    {
        f"ApiVersions v3 software name: {label}": _bad_software(*said)
        for label, said in _BAD_SOFTWARE.items()
    }
)
programs(
    {
        "ApiVersions v3 software name of one letter and dashes inside": lambda a: (
            a.api_versions(3, body=_software("a", "1-2.3")),
            a.oauth(),
            a.api_versions(3, body=_software("my-client.name", "1-2.3")),
            a.api_versions(3, body=_software("0", "1-2.3")),
        ),
        "ApiVersions v3 cut short": lambda a: (a.api_versions(3, body=b"\x09harn"), a.ends()),
        "ApiVersions v3 with an empty body": lambda a: (a.api_versions(3, body=b""), a.ends()),
        "ApiVersions v0 with bytes behind the body": lambda a: (
            a.api_versions(0, body=b"behind"),
            a.handshake("OAUTHBEARER"),
        ),
        "ApiVersions too new with garbage": lambda a: (
            a.api_versions(77, body=b"\xff" * 9),
            a.handshake("OAUTHBEARER"),
        ),
        "ApiVersions negative version": lambda a: (
            a.ask(API_VERSIONS, -1, b"", flexible=False),
            a.ends(),
        ),
        "ApiVersions twice before handshake": lambda a: (
            *(a.api_versions(3), a.api_versions(3), a.ends()),
        ),
        "ApiVersions between handshake and token": lambda a: (
            *(a.handshake("OAUTHBEARER"), a.api_versions(3), a.ends()),
        ),
        "ApiVersions too new between handshake and token": lambda a: (
            *(a.handshake("OAUTHBEARER"), a.api_versions(9), a.ends()),
        ),
        "ApiVersions many after login": lambda a: (
            *(a.api_versions(0), a.oauth()),
            *map(a.api_versions, (0, 1, 2, 3, 4, 4)),
        ),
    }
)

# --- headers


def _named(first: str | None, then: str | None) -> Act:
    """A login and a request, with client ids."""
    return lambda a: (
        a.ask(API_VERSIONS, 0, b"", client_id=first and ""),
        a.ask(SASL_HANDSHAKE, 1, _HANDSHAKE, client_id=first),
        a.authenticate(a.bearer()),
        a.metadata(client_id=then),
    )


def _odd_name(data: bytes, size: int, label: str, *, goes_on: bool = False) -> Act:
    frame = _frame(API_VERSIONS, 0, data, 5, size)
    return lambda a: (
        a.raw(frame, f"ApiVersions v0, client id {label}"),
        a.hear(API_VERSIONS, 0),
        a.handshake("OAUTHBEARER") if goes_on else None,
    )


programs(
    {
        "null client id": _named(None, None),
        "client id empty, then of 32,767 bytes": _named("c" * 32_767, "d" * 32_767),
        "client id that is no UTF-8": _odd_name(b"\xff\xfe\xfd", 3, "ff fe fd", goes_on=True),
        "client id longer than the frame": _odd_name(b"abc", 300, "cut short"),
        "client id of length -2": _odd_name(b"", -2, "length -2"),
        "request header v2 with an unknown tagged field": lambda a: (
            a.raw(
                _frame(API_VERSIONS, 3, b"c" + b"\x01\x05\x02ab" + _software("a")),
                "ApiVersions v3, tagged header",
            ),
            a.hear(API_VERSIONS, 3),
            a.handshake("OAUTHBEARER"),
        ),
    }
)
