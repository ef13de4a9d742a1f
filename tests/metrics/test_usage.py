"""Counts of allowed use stay exact in bounded memory."""

from metrics.usage import Amount, UsageTable, Use


def use(name: str) -> Use:
    return Use("User:alice", "app", "10.0.0.1", "READ", "TOPIC", name)


def test_equal_use_is_summed_and_an_interval_starts_empty() -> None:
    table = UsageTable()
    table.add(use("a"), Amount(2, 200, 10, 20))
    table.add(use("a"), Amount(1, 50, 30, 30))
    table.add(use("b"), Amount(0, 0, 30, 30))
    assert table.take() == ({use("a"): Amount(3, 250, 10, 30)}, Amount())
    assert table.take() == ({}, Amount())


def test_a_clock_that_jumps_back_never_reverses_the_times() -> None:
    table = UsageTable()
    table.add(use("a"), Amount(1, 1, 1_000, 1_000))
    table.add(use("a"), Amount(1, 1, 400, 400))
    assert table.take()[0] == {use("a"): Amount(2, 2, 400, 1_000)}


def test_a_hundred_thousand_topics_keep_the_total_exact() -> None:
    table = UsageTable(max_rows=1_000)
    for number in range(100_000):
        table.add(use(f"t{number}"), Amount(1, 10, number, number))
    table.add(use("t0"), Amount(1, 10, 5, 5))  # a known row still counts beyond the bound
    rows, missing = table.take()
    assert len(rows) == 1_000
    assert rows[use("t0")] == Amount(2, 20, 0, 5)
    assert missing == Amount(99_000, 990_000, 1_000, 99_999)


def test_long_names_are_bounded_by_their_characters() -> None:
    table = UsageTable(max_key_chars=40_000)
    for number in range(100):
        table.add(use(f"{number:032767}"), Amount(1, 1, 1, 1))
    rows, missing = table.take()
    assert (len(rows), missing.count) == (1, 99)
