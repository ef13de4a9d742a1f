"""What a request about SCRAM users may cost, whoever sends it."""

import tracemalloc
from collections.abc import Callable

import pytest

from proxy.errors import ClientFault
from proxy.handlers.scram_users import MAX_BYTES, MAX_ITEMS, answer, describe
from proxy.store import Store
from proxy.wire.apis import ALTER_USER_SCRAM_CREDENTIALS, DESCRIBE_USER_SCRAM_CREDENTIALS
from proxy.wire.messages import DescribeUserScramCredentialsRequest
from proxy.wire.primitives import MAX_STRING, MAX_TAGS, write_uvarint
from tests.support.frames import array

DELETION, UPSERTION = b"\x01\x01\x00", b"\x01\x01" + bytes(4) + b"\x01\x01\x00"


def users(count: int) -> tuple[int, bytes]:
    return DESCRIBE_USER_SCRAM_CREDENTIALS, array(b"\x01\x00", count) + b"\x00"


def tagged_users(count: int) -> tuple[int, bytes]:
    """Users with as many tagged fields as each may have, and one with the rest."""
    user = b"\x01" + write_uvarint(MAX_TAGS) + b"\x01\x00" * MAX_TAGS
    full, rest = divmod(count, MAX_TAGS + 1)
    last = b"\x01" + write_uvarint(rest - 1) + b"\x01\x00" * (rest - 1)
    return DESCRIBE_USER_SCRAM_CREDENTIALS, write_uvarint(full + 2) + user * full + last + b"\x00"


def deletions(count: int) -> tuple[int, bytes]:
    return ALTER_USER_SCRAM_CREDENTIALS, array(DELETION, count) + b"\x01\x00"


def both(count: int) -> tuple[int, bytes]:
    half = count // 2
    body = array(DELETION, half) + array(UPSERTION, count - half) + b"\x00"
    return ALTER_USER_SCRAM_CREDENTIALS, body


@pytest.mark.parametrize("authorized", [True, False])
@pytest.mark.parametrize("items", [users, tagged_users, deletions, both])
def test_more_items_than_anybody_sends_are_the_clients_fault(
    store: Store, items: Callable[[int], tuple[int, bytes]], authorized: bool
) -> None:
    """Whatever they are; so many are served."""
    api_key, body = items(MAX_ITEMS)
    assert answer(api_key, body, store, authorized=authorized)
    api_key, body = items(MAX_ITEMS + 1)
    with pytest.raises(ClientFault):
        answer(api_key, body, store, authorized=authorized)


@pytest.mark.parametrize(
    ("api_key", "body"),
    [
        (DESCRIBE_USER_SCRAM_CREDENTIALS, b"\x01\x00"),
        (ALTER_USER_SCRAM_CREDENTIALS, b"\x01\x01\x00"),
    ],
)
def test_more_bytes_than_anybody_sends_are_the_clients_fault(
    store: Store, api_key: int, body: bytes
) -> None:
    """Few names may be long, and letters may take four times as much in memory."""
    assert answer(api_key, body + bytes(MAX_BYTES - len(body)), store, authorized=True)
    with pytest.raises(ClientFault):
        answer(api_key, body + bytes(MAX_BYTES + 1 - len(body)), store, authorized=True)


def test_little_memory_is_needed_for_what_is_too_much(store: Store) -> None:
    api_key, body = users(1_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(ClientFault):
            answer(api_key, body, store, authorized=False)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 20


@pytest.mark.parametrize("letter", ["x", "\N{GRINNING FACE}"])
@pytest.mark.parametrize("times", [1, 2])
def test_sentences_can_be_read_whatever_they_repeat(store: Store, letter: str, times: int) -> None:
    """Kafka's clients read strings of at most 32,767 bytes; the name may have them all."""
    name = letter * (MAX_STRING // len(letter.encode()))
    request = DescribeUserScramCredentialsRequest(
        users=(DescribeUserScramCredentialsRequest.UserName(name=name),) * times
    )
    [result] = describe(request, store, authorized=True).results
    assert result.error_message is not None
    assert result.error_message.endswith(letter)
    assert len(result.error_message.encode()) <= MAX_STRING
