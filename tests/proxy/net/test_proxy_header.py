"""PROXY protocol headers: valid ones, and the cost of forged or broken ones."""

import random
from ipaddress import ip_address

import pytest

from proxy.net.proxy_header import MAX_BODY, ProxyHeader, ProxyHeaderError, announce, parse

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
PORTS = (40_000).to_bytes(2) + (9_094).to_bytes(2)
FOUR = ip_address("192.0.2.7").packed + ip_address("198.51.100.1").packed + PORTS
SIX = ip_address("2001:db8::7").packed + ip_address("2001:db8::1").packed + PORTS
MAPPED = ip_address("::ffff:192.0.2.7").packed + ip_address("::1").packed + PORTS
UNKNOWN_TLV = b"\xee\x00\x03abc"
NOTHING = b"\x04\x00\x00"


def v2(body: bytes, *, command: int = 0x21, family: int = 0x11, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return SIGNATURE + bytes((command, family)) + size.to_bytes(2) + body


VALID = [
    (b"PROXY TCP4 192.0.2.7 198.51.100.1 40000 9094\r\n", "192.0.2.7"),
    (b"PROXY TCP6 2001:DB8:0::7 2001:db8::1 0 65535\r\n", "2001:db8::7"),
    (b"PROXY TCP6 ::ffff:192.0.2.7 ::1 1 2\r\n", "192.0.2.7"),
    (b"PROXY UNKNOWN\r\n", None),
    (b"PROXY UNKNOWN ffff:f 1 2 3\r\n", None),
    (v2(FOUR), "192.0.2.7"),
    (v2(SIX, family=0x21), "2001:db8::7"),
    (v2(MAPPED, family=0x21), "192.0.2.7"),
    (v2(FOUR + UNKNOWN_TLV + NOTHING), "192.0.2.7"),
    (v2(FOUR + b"\xee" + (MAX_BODY - 15).to_bytes(2) + bytes(MAX_BODY - 15)), "192.0.2.7"),
    (v2(b"", command=0x20, family=0), None),
    (v2(b"\xff" * 7, command=0x20, family=0x31), None),
]


@pytest.mark.parametrize(("header", "address"), VALID)
def test_headers_are_read_byte_by_byte(header: bytes, address: str | None) -> None:
    """Bytes of the client may follow in the same read; a split header is never misread."""
    expected = ProxyHeader(len(header), address)
    assert parse(header + b"\0\0\0\x10rest") == expected
    assert [parse(header[:size]) for size in range(len(header))] == [None] * len(header)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\0\0\0\x10", "no PROXY"),
        (b"\x16\x03\x01\x02\0", "no PROXY"),
        (b"GET / HTTP/1.1\r\n", "no PROXY"),
        (b"proxy TCP4 192.0.2.7 198.51.100.1 1 2\r\n", "no PROXY"),
        (b"PROXY " + b"x" * 101, "107 bytes"),
        (b"PROXY UNKNOWN " + b"x" * 92 + b"\r\n", "107 bytes"),
        (b"PROXY TCP4 192.0.2.7 198.51.100.1 1\r\n", "invalid v1"),
        (b"PROXY TCP4  192.0.2.7 198.51.100.1 1 2\r\n", "invalid v1"),
        (b"PROXY UDP4 192.0.2.7 198.51.100.1 1 2\r\n", "invalid v1"),
        (b"PROXY TCP4 192.0.2.7 198.51.100.1 65536 2\r\n", "invalid v1"),
        (b"PROXY TCP4 192.0.2.7 198.51.100.1 01 2\r\n", "invalid v1"),
        (b"PROXY TCP4 192.0.2.7 198.51.100.1 \xb2 2\r\n", "invalid v1"),
        (b"PROXY TCP4 2001:db8::7 198.51.100.1 1 2\r\n", "invalid address"),
        (b"PROXY TCP4 192.0.2.07 198.51.100.1 1 2\r\n", "invalid address"),
        (b"PROXY TCP4 192.0.2.7 \xff 1 2\r\n", "invalid address"),
        (b"PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n", "invalid address"),
        (v2(FOUR, command=0x11), "version or command"),
        (v2(FOUR, command=0x22), "version or command"),
        (v2(bytes(216), family=0x31), "without TCP"),
        (v2(FOUR, family=0x12), "without TCP"),
        (v2(FOUR, family=0x00), "without TCP"),
        (v2(FOUR[:-1]), "broken lengths"),
        (v2(SIX[:12], family=0x21), "broken lengths"),
        (v2(FOUR + b"\x04\x00"), "broken lengths"),
        (v2(FOUR + b"\x04\xff\xff"), "broken lengths"),
        (v2(b"", length=MAX_BODY + 1), "4112 bytes"),
        (v2(b"", command=0x20, length=65_535), "4112 bytes"),
    ],
)
def test_invalid_headers_are_refused_without_quoting_them(data: bytes, problem: str) -> None:
    with pytest.raises(ProxyHeaderError, match=problem) as caught:
        parse(data)
    assert str(caught.value).isprintable()


def test_no_mutation_of_a_header_raises_anything_else_or_waits_for_more_than_the_bound() -> None:
    chance = random.Random(53)  # noqa: S311 - no secret
    headers = [header for header, _ in VALID]
    for _ in range(5_000):
        data = bytearray(chance.choice(headers))
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(min(len(data), 60))] = chance.randrange(256)
        given = bytes(data) + bytes(chance.choice((0, 200, 16 + MAX_BODY)))
        try:
            found = parse(given)
        except ProxyHeaderError:
            continue
        assert len(given) < 16 + MAX_BODY if found is None else found.size <= len(given)


@pytest.mark.parametrize(
    ("source", "destination", "body"),
    [
        (("192.0.2.7", 40_000), ("198.51.100.1", 9_094), FOUR),
        (("2001:db8::7", 40_000), ("2001:db8::1", 9_094), SIX),
        (
            ("192.0.2.7", 0),
            ("2001:db8::1", 9_094),
            ip_address("::ffff:192.0.2.7").packed + ip_address("2001:db8::1").packed + b"\0\0#\x86",
        ),
    ],
)
def test_a_header_names_the_client_to_the_next_proxy(
    source: tuple[str, int], destination: tuple[str, int], body: bytes
) -> None:
    header = announce(source, destination)
    assert header == v2(body, family=0x11 if len(body) == len(FOUR) else 0x21)
    assert parse(header) == ProxyHeader(len(header), source[0])


def test_the_proxys_own_connections_are_local() -> None:
    assert announce(None, ("198.51.100.1", 9_094)) == v2(b"", command=0x20, family=0)


def test_a_client_that_has_left_is_not_announced() -> None:
    with pytest.raises(OSError, match="unknown"):
        announce(("unknown", 0), ("198.51.100.1", 9_094))
