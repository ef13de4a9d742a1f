import multiprocessing
import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.quota.shared_memory import (
    KEEP_UNTIL,
    NUMBER_MASK,
    VALUE_MASK,
    UsageTable,
    WindowConfig,
    pack,
    unpack,
)

CONFIG = WindowConfig()


@given(number=st.integers(0, 2**40), ahead=st.integers(-1_000, 1_000), value=st.integers(0))
def test_a_word_says_which_sample_it_is_of(number: int, ahead: int, value: int) -> None:
    """Twenty bits of the number suffice: the rest is what is near."""
    assert unpack(pack(number, value), number + ahead) == (number, min(value, VALUE_MASK))


def test_a_word_never_has_more_than_64_bits() -> None:
    assert pack(NUMBER_MASK, 2**80) == 2**64 - 1
    assert pack(0, -5) == 0


def test_a_worker_finds_what_another_claimed() -> None:
    table = UsageTable(workers=2, config=CONFIG)
    digest = table.digest("producer_byte_rate", {"user": "u", "client-id": ""})
    row = table.claim(1, digest, sample=5)
    assert table.find(1, digest) == row
    assert table.find(0, digest) is None
    assert table.claim(1, digest, sample=900) == row


def test_names_cannot_be_made_to_look_alike() -> None:
    """A separator in a name must not make two clients share a quota."""
    table = UsageTable(workers=1, config=CONFIG)
    tags = [
        {"user": "a", "client-id": "b"},
        {"user": "a:b", "client-id": ""},
        {"user": "", "client-id": "a:b"},
        {"user": "b", "client-id": "a"},
        {"usera": "", "client-id": "b"},
    ]
    assert len({table.digest("k", one) for one in tags}) == len(tags)
    assert table.digest("k", tags[0]) != table.digest("l", tags[0])
    assert table.digest("k", dict(reversed(tags[0].items()))) == table.digest("k", tags[0])


def test_nobody_outside_can_tell_where_a_row_will_be() -> None:
    first, second = (UsageTable(workers=1, config=CONFIG, rows=8) for _ in range(2))
    assert first.digest("k", {"user": "u"}) != second.digest("k", {"user": "u"})


def test_a_row_is_given_away_only_when_all_in_it_is_forgotten() -> None:
    table = UsageTable(workers=1, config=CONFIG, rows=8)
    rows = [table.claim(0, digest, sample=100) for digest in range(1, 9)]
    assert len(set(rows)) == 8
    assert table.claim(0, 9, sample=111) is None, "all are kept for the length of a window"
    first = rows[0]
    assert first is not None
    table.words[first + KEEP_UNTIL] = 200
    taken = table.claim(0, 9, sample=112)
    assert taken in rows[1:]
    assert table.find(0, 1) == first


def test_a_reader_notices_that_a_row_has_another_owner() -> None:
    table = UsageTable(workers=1, config=CONFIG, rows=8)
    digests = list(range(1, 9))
    rows = [table.claim(0, digest, sample=100) for digest in digests]
    row = rows[0]
    assert row is not None
    assert table.read(0, 1, row) is not None
    table.claim(0, 99, sample=1_000)
    assert table.read(0, 1, row) is None


A, B = 0, 2**64 - 1


@pytest.fixture
def hammered() -> Iterator[tuple[UsageTable, int]]:
    """A table of which another process changes one word all the time, between two values."""
    table = UsageTable(workers=1, config=CONFIG, rows=8)
    row = table.claim(0, 7, sample=1)
    assert row is not None
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=_hammer, args=(table, row + 3), daemon=True)
    process.start()
    yield table, row + 3
    process.kill()
    process.join()


def _hammer(table: UsageTable, at: int) -> None:
    words, parent = table.words, os.getppid()
    while os.getppid() == parent:
        for _ in range(10_000):
            words[at] = A
            words[at] = B


def test_no_reader_sees_half_a_word(hammered: tuple[UsageTable, int]) -> None:
    """The table relies on it, for items and for rows. Every bit differs between A and B."""
    table, at = hammered
    seen = set()
    for _ in range(60_000):
        seen.add(table.words[at])
        seen.update(table.words[at : at + 1].tolist())
    assert seen <= {A, B}
