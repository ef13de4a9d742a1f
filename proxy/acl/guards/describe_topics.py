"""DescribeTopicPartitions (KIP-966): Describe on each topic.

A request without topics asks for all: the broker, which hides nothing, pages through them, and a
page may end at a topic that must not be told. The cursor of such a page is sealed: it is that
topic's name, encrypted with a key of this process in place of the name. The broker is asked to go
on from what a seal holds. A seal of another process is no name that a topic can have, and sorts
before all that are: the listing begins anew.
"""

import base64
import binascii
from dataclasses import replace
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from kio.schema.errors import ErrorCode

from proxy.acl.guards.entities import item_type
from proxy.acl.guards.items import answer, entities, may_topic, read_request
from proxy.acl.judgement import BodyTransform, Change, Inquiry, Judgement
from proxy.acl.model import Operation, ResourceType
from proxy.lockstep import pausing
from proxy.wire.codec import decode, encode, response_type

DESCRIBE_TOPIC_PARTITIONS: Final = 75

_SEAL: Final = "!"
"""Begins a sealed cursor; sorts before all that a topic's name may consist of."""
_KEY: Final = AESSIV(AESSIV.generate_key(256))
_NAME_SIZE: Final = 249
"""Longest name that a topic may have (`Topic.MAX_NAME_LENGTH`): every seal is as long, so that it
does not tell the length of what it holds."""


def describe_topic_partitions(inquiry: Inquiry) -> Judgement:
    """Judge a DescribeTopicPartitions."""
    request = read_request(inquiry, DESCRIBE_TOPIC_PARTITIONS)
    if not request.topics:
        return Change(request=_unsealed(request), response=_cut(inquiry))
    cursor = request.cursor
    if cursor is not None and cursor.topic_name not in {topic.name for topic in request.topics}:
        return Change(response=_cut(inquiry))  # which the broker refuses for being senseless
    asked = {
        topic.name: topic
        for topic in pausing(request.topics)
        if cursor is None or _sort_key(topic.name) >= _sort_key(cursor.topic_name)
    }
    seen = {name for name in asked if may_topic(inquiry, Operation.DESCRIBE, name)}
    kept = tuple(topic for name, topic in asked.items() if name in seen)
    refused = [name for name in asked if name not in seen]
    if not kept:  # none must not become all
        return answer(inquiry, DESCRIBE_TOPIC_PARTITIONS, topics=_refusals(refused))
    if not refused:
        return Change(response=_cut(inquiry))
    if cursor is not None and cursor.topic_name not in seen:
        cursor = None
    smaller = replace(request, topics=kept, cursor=cursor)
    return Change(request=encode(smaller), response=_cut(inquiry, refused))


def _sort_key(name: str) -> bytes:
    """Return what sorts as Java compares strings."""
    return name.encode("utf-16-be")


def _refusals(names: list[str]) -> list[dict[str, Any]]:
    """No id, and not whether it is internal: it is not looked whether they exist."""
    return [
        {
            "error_code": ErrorCode.topic_authorization_failed,
            "name": name,
            "topic_id": None,
            "partitions": [],
        }
        for name in pausing(names)
    ]


def _cut(inquiry: Inquiry, refused: list[str] | None = None) -> BodyTransform:
    """Show what may be seen, with the rights on it, and the refusals behind."""
    schema = response_type(DESCRIBE_TOPIC_PARTITIONS, inquiry.api_version)
    refusals = entities(item_type(schema, "topics"), _refusals(refused or []))

    def visible(name: str | None) -> bool:
        return name is not None and may_topic(inquiry, Operation.DESCRIBE, name, report=False)

    def cut(body: bytes) -> bytes:
        response = decode(schema, body)
        shown = tuple(
            replace(
                topic,
                topic_authorized_operations=inquiry.authority.operations(
                    ResourceType.TOPIC, topic.name
                ),
            )
            for topic in response.topics
            if visible(topic.name)
        )
        cursor = response.next_cursor
        if cursor is not None and not visible(cursor.topic_name):
            cursor = replace(cursor, topic_name=_seal(cursor.topic_name))
        return encode(replace(response, topics=(*shown, *refusals), next_cursor=cursor))

    return cut


def _seal(name: str) -> str:
    padded = name.encode().ljust(_NAME_SIZE, b"\x00")
    return _SEAL + base64.urlsafe_b64encode(_KEY.encrypt(padded, None)).decode()


def _unsealed(request: Any) -> bytes | None:
    """Return the body that has the name in place of a seal; None: it is as it came."""
    cursor = request.cursor
    if cursor is None or not cursor.topic_name.startswith(_SEAL):
        return None
    try:
        sealed = base64.urlsafe_b64decode(cursor.topic_name[len(_SEAL) :])
        name = _KEY.decrypt(sealed, None).rstrip(b"\x00").decode()
    except (binascii.Error, InvalidTag, ValueError):
        return None
    return encode(replace(request, cursor=replace(cursor, topic_name=name)))
