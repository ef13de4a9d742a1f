"""What a release of Kafka has that is unknown here: made-up releases, and the one of the tests."""

import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.drift.comparison import unknown_apis, unknown_fields, unknown_versions
from tests.drift.definitions import Versions, parse_versions, read_definitions
from tests.drift.settings import read_settings


def jar(directory: Path, files: dict[str, str | bytes]) -> Path:
    path = directory / "kafka-clients-9.9.9.jar"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


GROUP_ID = {"name": "GroupId", "type": "string", "versions": "0+"}
GENERATION_ID = {"name": "GenerationId", "type": "int32", "versions": "0+"}
MEMBER_ID = {"name": "MemberId", "type": "string", "versions": "0+"}
INSTANCE_ID = {
    "name": "GroupInstanceId",
    "type": "string",
    "versions": "3+",
    "nullableVersions": "3+",
}
HEARTBEAT = [GROUP_ID, GENERATION_ID, MEMBER_ID, INSTANCE_ID]


def definition(**changes: Any) -> str:
    whole = {
        "apiKey": 12,
        "type": "request",
        "listeners": ["broker"],
        "name": "HeartbeatRequest",
        "validVersions": "0-4",
        "flexibleVersions": "4+",
        "fields": HEARTBEAT,
    }
    return "// A comment of { braces\n" + json.dumps(whole | changes)


@pytest.mark.parametrize(
    ("text", "within", "versions"),
    [
        ("3", None, Versions(3, 3)),
        ("0-4", None, Versions(0, 4)),
        ("none", None, None),
        ("2+", Versions(0, 4), Versions(2, 4)),
        ("0-2", Versions(1, 4), Versions(1, 2)),
        ("5+", Versions(0, 4), None),
    ],
)
def test_versions(text: str, within: Versions | None, versions: Versions | None) -> None:
    assert parse_versions(text, within) == versions


@pytest.mark.parametrize("text", ["", "v3", "3-", "-1", "2+"])
def test_versions_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ValueError, match="versions"):
        parse_versions(text)


def test_a_message_that_the_proxy_knows(tmp_path: Path) -> None:
    path = jar(tmp_path, {"common/message/HeartbeatRequest.json": definition()})
    definitions = read_definitions(path)
    assert [one.name for one in definitions.messages] == ["Heartbeat"]
    assert not list(unknown_apis(definitions))
    assert not list(unknown_versions(definitions))
    assert not list(unknown_fields(definitions))


def test_a_new_api_is_named_with_its_fields(tmp_path: Path) -> None:
    added = definition(
        apiKey=999,
        name="AddedRequest",
        validVersions="0-1",
        latestVersionUnstable=True,
        fields=[{"name": "Topics", "type": "[]Topic", "versions": "0+"}],
        commonStructs=[
            {
                "name": "Topic",
                "versions": "0+",
                "fields": [{"name": "TopicId", "type": "uuid", "versions": "1+"}],
            }
        ],
    )
    definitions = read_definitions(jar(tmp_path, {"common/message/AddedRequest.json": added}))
    (unknown,) = unknown_apis(definitions)
    assert unknown.title == ("999 Added request v0 to v1 (the last is unstable), served by broker")
    assert unknown.fields == ("Topics  []Topic  v0 to v1", "Topics.TopicId  uuid  v1")


def test_a_new_version_is_named_with_its_new_fields(tmp_path: Path) -> None:
    fields = [*HEARTBEAT, {"name": "ClusterId", "type": "string", "versions": "5+"}]
    newer = definition(validVersions="0-5", fields=fields)
    definitions = read_definitions(jar(tmp_path, {"common/message/HeartbeatRequest.json": newer}))
    (unknown,) = unknown_versions(definitions)
    assert unknown.title == "12 Heartbeat request v0 to v5; the table ends with v4"
    assert unknown.fields == ("ClusterId  string  v5",)


RACK = {"name": "Rack", "type": "string", "versions": "3+"}
"""As a tagged field can be added to a version that exists already (KIP-482)."""


@pytest.mark.parametrize(
    ("fields", "lines"),
    [
        ([*HEARTBEAT, RACK], ("Rack  string  v3, v4",)),
        (
            [GROUP_ID, GENERATION_ID | {"type": "int64"}, MEMBER_ID, INSTANCE_ID],
            ("GenerationId  int64, here int32  v0, v1, v2, v3, v4",),
        ),
        (
            [GROUP_ID, GENERATION_ID, MEMBER_ID | {"nullableVersions": "4+"}, INSTANCE_ID],
            ("MemberId  string or null, here string  v4",),
        ),
        (
            [GROUP_ID, GENERATION_ID, MEMBER_ID, INSTANCE_ID | {"tag": 0}],
            ("GroupInstanceId  string or null, tag 0, here string or null  v3, v4",),
        ),
        (
            [GROUP_ID, MEMBER_ID, GENERATION_ID, INSTANCE_ID],
            ("another order, or fields that only the schema has  v0, v1, v2, v3, v4",),
        ),
        (
            [GROUP_ID, GENERATION_ID, MEMBER_ID, INSTANCE_ID | {"versions": "4+"}],
            ("another order, or fields that only the schema has  v3",),
        ),
    ],
    ids=["new", "type", "null", "tag", "order", "gone"],
)
def test_what_a_known_version_has_otherwise_is_named(
    tmp_path: Path, fields: list[dict[str, Any]], lines: tuple[str, ...]
) -> None:
    changed = definition(fields=fields)
    definitions = read_definitions(jar(tmp_path, {"common/message/HeartbeatRequest.json": changed}))
    (unknown,) = unknown_fields(definitions)
    assert (unknown.title, unknown.fields) == ("12 Heartbeat request", lines)


def test_a_field_with_another_name_is_known(tmp_path: Path) -> None:
    """A later release may call it otherwise: its bytes are the same."""
    renamed = GENERATION_ID | {"name": "GenerationIdOrMemberEpoch"}
    changed = definition(fields=[GROUP_ID, renamed, MEMBER_ID, INSTANCE_ID])
    definitions = read_definitions(jar(tmp_path, {"common/message/HeartbeatRequest.json": changed}))
    assert not list(unknown_fields(definitions))


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", "[" * 100_000, definition(validVersions="all"), definition(fields=[{}])],
    ids=["empty", "list", "cut", "deep", "versions", "field"],
)
def test_definitions_that_do_not_parse_are_named(tmp_path: Path, content: str) -> None:
    files: dict[str, str | bytes] = {
        "common/message/BadRequest.json": content,
        "common/message/HeartbeatRequest.json": definition(),
    }
    definitions = read_definitions(jar(tmp_path, files))
    assert [one.name for one in definitions.messages] == ["Heartbeat"]
    (sentence,) = definitions.unreadable
    assert sentence.startswith("common/message/BadRequest.json: ")


def class_file(*constants: bytes) -> bytes:
    head = struct.pack(">IHHH", 0xCAFEBABE, 0, 61, 1 + len(constants) + 2)
    long = struct.pack(">Bq", 5, 7)  # takes two entries
    return head + long + b"".join(b"\1" + struct.pack(">H", len(c)) + c for c in constants)


def test_settings_are_the_literals_that_look_like_their_names(tmp_path: Path) -> None:
    constants = (b"sasl.new.setting", b"sasl.", b"ssl", b"Say sasl.x.y here", b"log.dirs")
    name = "org/apache/kafka/Config.class"
    path = jar(tmp_path, {name: class_file(*constants), "other/Config.class": b"sasl.other"})
    assert read_settings([path]) == {"sasl.new.setting"}


@pytest.mark.parametrize("content", [b"", b"\xca\xfe\xba\xbe", class_file(b"x")[:-1] + b"\xff"])
def test_a_class_that_cannot_be_read_is_named(tmp_path: Path, content: bytes) -> None:
    content = content[:10] + b"\xff" * 10 if len(content) > 10 else content
    with pytest.raises(ValueError, match=r"Config\.class is not a class"):
        read_settings([jar(tmp_path, {"org/apache/kafka/Config.class": content})])
