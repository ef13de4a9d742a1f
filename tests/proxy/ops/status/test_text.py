import pytest

from proxy.ops.status.text import ago, duration, moment, number, plural, size


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "-"),
        (0, "0 s"),
        (0.4, "0 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (3_600, "1 h"),
        (3_605, "1 h"),
        (7_260, "2 h 1 min"),
        (90_000, "1 d 1 h"),
        (86_400 * 400, "400 d"),
        (-75, "-1 min 15 s"),
    ],
)
def test_durations_have_two_units(seconds: float | None, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.0 KiB"),
        (10_188, "9.9 KiB"),
        (10_240, "10 KiB"),
        (1_048_576, "1.0 MiB"),
        (2**63, "8192 PiB"),
    ],
)
def test_sizes_have_three_digits(count: int, said: str) -> None:
    assert size(count) == said


def test_moments_and_numbers() -> None:
    assert moment(1_760_000_000_000) == "2025-10-09 08:53:20 UTC"
    assert ago(1_000, 62_000) == "1 min 1 s ago"
    assert ago(62_000, 1_000) == "0 s ago", "a clock that was set back"
    assert number(1_234_567) == "1,234,567"
    assert [plural(count, "time") for count in (0, 1, 2)] == ["0 times", "1 time", "2 times"]
