import pytest

from metrics.delivery.selection import parse_target


def test_a_target_is_a_topic() -> None:
    text = "kafka:sessions.events-1_a"
    assert parse_target(text).topic == "sessions.events-1_a"
    assert str(parse_target(text)) == text


@pytest.mark.parametrize(
    "text", ["", "kafka:", "kafka:..", "kafka:a b", "kafka:" + "a" * 250, "/shared", "http://["]
)
def test_what_is_no_target(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        parse_target(text)


@pytest.mark.parametrize("text", ["file:///shared", "s3a://user:secret@bucket/a"])
def test_folders_and_object_stores_are_left_to_log_shippers(text: str) -> None:
    """Earlier versions delivered there; the sentence must not quote a password."""
    with pytest.raises(ValueError, match="must be kafka:TOPIC; a log shipper") as raised:
        parse_target(text)
    assert "secret" not in str(raised.value)
