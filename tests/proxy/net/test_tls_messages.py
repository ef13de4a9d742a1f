"""What OpenSSL is given of a handshake: complete messages, however records and reads cut them."""

import pytest

from proxy.net.tls_messages import HandshakeMessages
from proxy.net.tls_pace import MAX_HANDSHAKE, MAX_RECORD

HANDSHAKE, CHANGE_CIPHER_SPEC, ALERT, DATA = 22, 20, 21, 23


def record(content: bytes, content_type: int = HANDSHAKE) -> bytes:
    return bytes([content_type, 3, 3]) + len(content).to_bytes(2) + content


def message(size: int, *, kind: int = 1) -> bytes:
    return bytes([kind]) + size.to_bytes(3) + bytes(size)


def given(*reads: bytes, encrypted: bool = False) -> list[bytes] | None:
    """What is given to OpenSSL, in pieces; None: it is refused."""
    messages, kept, pieces = HandshakeMessages(), b"", []
    for read in reads:
        kept += read
        while size := messages.complete(kept, encrypted=encrypted):
            pieces.append(kept[:size])
            kept = kept[size:]
        if size is None:
            return None
    return pieces


HELLO = record(message(300))
TINY = b"".join(record(bytes([one])) for one in message(60))
SEVERAL = record(message(10, kind=11) + message(0, kind=16) + message(70, kind=15)[:20])
REST = record(message(70, kind=15)[20:])
CCS = record(b"\x01", CHANGE_CIPHER_SPEC)


@pytest.mark.parametrize(
    ("stream", "pieces"),
    [
        (HELLO, [HELLO]),
        (HELLO[:-1], []),
        (record(message(300)[:3]), []),
        (TINY, [TINY]),
        (TINY[:-1], []),
        (SEVERAL, []),
        (SEVERAL + REST, [SEVERAL + REST]),
        (HELLO + CCS + HELLO, [HELLO + CCS, HELLO]),
        (HELLO + record(b"\x02\x28", ALERT), [HELLO + record(b"\x02\x28", ALERT)]),
        (record(message(MAX_HANDSHAKE)[:9_000]), []),
        (record(message(MAX_HANDSHAKE + 1)[:4]), None),
        (record(message(0) + message(131_000)[:4]), None),
        (record(message(9)[:5]) + CCS, None),
        (record(message(9)[:5]) + record(b"data", DATA), None),
        (record(message(9)[:2]) + record(b"data", DATA), None),
        (bytes([HANDSHAKE, 3, 3]) + (MAX_RECORD + 1).to_bytes(2), None),
    ],
)
def test_complete_messages_are_given(stream: bytes, pieces: list[bytes] | None) -> None:
    """In one read, cut in two anywhere, and byte by byte."""
    whole = None if pieces is None else b"".join(pieces)
    assert given(stream) == pieces
    for cut in range(1, min(len(stream), 500)):
        found = given(stream[:cut], stream[cut:])
        assert (None if found is None else b"".join(found)) == whole
    found = given(*(bytes([one]) for one in stream))
    assert (None if found is None else b"".join(found)) == whole


def test_encrypted_records_are_given_whole() -> None:
    """The Finished of TLS 1.2 has the content type of a handshake, and looks like anything."""
    finished = record(b"\x01\xff\xff\xff" + bytes(36))
    assert given(finished[:-1], encrypted=True) == []
    assert given(finished, encrypted=True) == [finished]
    assert given(finished) is None
