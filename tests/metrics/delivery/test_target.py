import pytest

from metrics.delivery.target import Target, TargetKind, parse_target


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("kafka:sessions.events-1_a", Target(TargetKind.KAFKA, "sessions.events-1_a")),
        ("file:///shared/events%20a", Target(TargetKind.FOLDER, "/shared/events a")),
        ("s3a://bucket", Target(TargetKind.OBJECTS, "bucket")),
        ("s3a://bucket/a/b/", Target(TargetKind.OBJECTS, "bucket", "a/b")),
    ],
)
def test_targets(text: str, target: Target) -> None:
    assert parse_target(text) == target
    assert parse_target(str(target)) == target


@pytest.mark.parametrize(
    "text",
    [
        "",
        "kafka:",
        "kafka:..",
        "kafka:a b",
        "kafka:" + "a" * 250,
        "/shared",
        "file:shared",
        "file://host/shared",
        "file:///a%00b",
        "file:///a?b",
        "s3a://",
        "s3a://Bucket/a",
        "s3a://user:secret@bucket/a",
        "http://[",
        "https://example.test/",
    ],
)
def test_what_is_no_target(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        parse_target(text)
