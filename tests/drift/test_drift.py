"""The generated data file and its comparison, with fictitious releases."""

import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.drift.__main__ import differences
from tests.drift.definitions import (
    OVERLAY,
    Definition,
    Unreadable,
    compact,
    read_definitions,
    with_overlay,
)
from tests.drift.generate import ERROR_CODES_STUB, STUB, error_codes_stub, stub
from tests.drift.settings import read_settings


def jar(directory: Path, files: dict[str, str | bytes]) -> Path:
    path = directory / "kafka-clients-9.9.9.jar"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def field(name: str, kind: str = "string", versions: str = "0+", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "versions": versions, **more}


def definition(*fields: dict[str, Any], **changes: Any) -> Definition:
    return {
        "apiKey": 12,
        "type": "request",
        "name": "HeartbeatRequest",
        "validVersions": "0-4",
        "flexibleVersions": "4+",
        "fields": fields or [field("GroupId")],
        **changes,
    }


def block(one: Definition) -> list[str]:
    return compact({"": one}, "# heading").splitlines()[2:]


def test_a_message_is_its_facts() -> None:
    nested = [field("TopicId", "uuid", "1+", about="what it is", ignorable=True)]
    assert block(
        definition(
            field("GroupId", entityType="groupId"),
            field("V3AndBelowTimeoutMs", "int32", "3+", default=-1),
            field("InstanceId", "string", "3+", nullableVersions="3+", default="null"),
            field("Enable2Pc", "bool", "4+", default=False, tag=0, taggedVersions="4+"),
            field("Topics", "[]Topic", fields=nested),
            field("More", "[]Topic"),
            latestVersionUnstable=True,
        )
    ) == [
        "12 HeartbeatRequest 0-4 flexible=4 unstable",
        "group_id string 0+",
        "v3_and_below_timeout_ms int32 3+ default=-1",
        "instance_id string 3+ null=3+ default=null",
        "enable2_pc bool 4+ default=false tag=0",
        "topics []Topic 0+",
        "more []Topic 0+",
        ".Topic",
        "topic_id uuid 1+ ignorable",
    ]


def test_definitions_have_comments_and_some_are_of_no_version(tmp_path: Path) -> None:
    text = "// A comment of { braces\n" + json.dumps(definition(field("A", default="//")))
    gone = json.dumps(definition(name="GoneRequest", validVersions="none"))
    files: dict[str, str | bytes] = {
        "common/message/HeartbeatRequest.json": text,
        "common/message/GoneRequest.json": gone,
        "common/message/RequestHeader.json": "{}",
    }
    found = read_definitions(jar(tmp_path, files))
    assert list(found) == ["HeartbeatRequest"]
    assert block(found["HeartbeatRequest"])[1] == "a string 0+ default=//"


@pytest.mark.parametrize(
    "one",
    [
        field("A", "[]Topic", fields=[field("B", "[]Topic", fields=[field("C")])]),
        field("A", "string", "0+", tag=0, taggedVersions="1+"),
        field("A", "string", "0+", flexibleVersions="none"),
        field("A", "string", "0+", default="two words"),
    ],
    ids=["two of a name", "tagged in part", "flexible in part", "a blank"],
)
def test_what_the_file_cannot_express_is_refused(one: dict[str, Any]) -> None:
    """An unknown attribute must not be ignored."""
    with pytest.raises(Unreadable, match="HeartbeatRequest: "):
        block(definition(one))


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000, "{}"])
def test_definitions_that_do_not_parse_are_named(tmp_path: Path, content: str) -> None:
    path = jar(tmp_path, {"common/message/BadRequest.json": content})
    with pytest.raises(Unreadable, match=r"common/message/BadRequest\.json: "):
        read_definitions(path)


def test_the_overlay_adds_versions_to_an_older_release() -> None:
    (release, names), *_ = OVERLAY["releases"].items()
    older = {name: definition(field("Operation", "int8"), name=name) for name in names}
    newer = {
        name: definition(field("Components", "[]string"), name=name) for name in OVERLAY["changes"]
    }
    merged = with_overlay(newer, {release: older})
    assert merged["CreateAclsRequest"] == older["CreateAclsRequest"]
    acls = block(merged["DescribeAclsRequest"])
    assert acls[0].startswith("12 DescribeAclsRequest 0-4 ")
    assert acls[1:3] == ["operation int8 0-3", "filters []DescribeAclsFilter 4+"]
    assert "components []string 0-1" in block(merged["DescribeClientQuotasRequest"])


def test_what_differs_is_named_with_its_message() -> None:
    before = compact({"": definition(field("GroupId"), field("Rack"))}, "# 1")
    later = definition(field("GroupId"), field("Rack", "string", "3+"), validVersions="0-5")
    added = definition(apiKey=99, name="AddedRequest")
    after = compact({"": later, "added": added}, "# 2")
    assert differences(before, before) == []
    assert differences(before, after) == [
        "  AddedRequest",
        "    +99 AddedRequest 0-4 flexible=4",
        "    +group_id string 0+",
        "  HeartbeatRequest",
        "    -12 HeartbeatRequest 0-4 flexible=4",
        "    +12 HeartbeatRequest 0-5 flexible=4",
        "    -rack string 0+",
        "    +rack string 3+",
    ]


def test_the_stubs_are_those_of_the_code() -> None:
    """`make schemas` writes them for mypy."""
    assert STUB.read_text() == stub()
    assert ERROR_CODES_STUB.read_text() == error_codes_stub()


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
