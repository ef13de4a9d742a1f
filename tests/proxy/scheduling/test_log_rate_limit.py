"""Log rate limit: what clients can cause does not fill the log."""

from proxy.scheduling.log_rate_limit import INTERVAL, MAX_CAUSES, MAX_DETAILS, LogRateLimit


def test_a_cause_is_told_once_a_minute() -> None:
    repeats = LogRateLimit()
    assert repeats.line("a", "a happened", 0.0) == "a happened"
    assert repeats.line("b", "b happened", 1.0) == "b happened"
    for now in (1.0, 2.0, INTERVAL - 0.1):
        assert repeats.line("a", "a happened", now) is None
    reported = repeats.line("a", "a happened", INTERVAL)
    assert reported == "a happened (and 3 more in the last minute)"
    assert repeats.line("a", "a happened", 2 * INTERVAL) == "a happened"


def test_who_makes_up_causes_fills_neither_log_nor_memory() -> None:
    """Client ids and addresses are free: ten thousand of them are two hundred lines a minute."""
    repeats = LogRateLimit()
    lines = [repeats.line(f"client-{n}", "it happened", n / 1_000) for n in range(10_000)]
    assert sum(line is not None for line in lines) == MAX_CAUSES
    assert len(repeats._logged_at) == MAX_CAUSES
    assert repeats.line("client-0", "it happened", 11.0) is None, "it is not told more often"
    reported = repeats.line("another", "it happened", INTERVAL + 1.0)
    assert reported == f"it happened (and {10_000 - MAX_CAUSES} of others, left out)"
    assert len(repeats._logged_at) <= MAX_CAUSES
    assert not repeats._suppressed


def test_each_detail_of_a_cause_has_a_line_of_its_own() -> None:
    """Behind one address (NAT), the third user that fails to log in is logged, too."""
    repeats = LogRateLimit()
    for user in ("alice", "bob", "carol"):
        text = f"{user} failed"
        assert repeats.line("bad 10.0.0.1", text, 0.0, detail=user) == text
        assert repeats.line("bad 10.0.0.1", text, 1.0, detail=user) is None
    reported = repeats.line("bad 10.0.0.1", "bob failed", INTERVAL, detail="bob")
    assert reported == "bob failed (and 1 more in the last minute)"


def test_details_made_up_by_one_address_leave_room_for_other_causes() -> None:
    repeats = LogRateLimit()
    lines = [repeats.line("bad 10.0.0.1", "it failed", 0.0, detail=f"u{n}") for n in range(10_000)]
    assert sum(line is not None for line in lines) == MAX_DETAILS + 1, "the rest share one line"
    assert repeats.line("bad 10.0.0.10", "it failed", 0.0, detail="u") == "it failed"
    reported = repeats.line("bad 10.0.0.1", "it failed", INTERVAL, detail="new")
    assert reported == "it failed"
    assert len(repeats._logged_at) <= MAX_DETAILS + 3
