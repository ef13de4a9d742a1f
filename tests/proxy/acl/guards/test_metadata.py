"""Metadata: what is hidden, what may be made, and how each version says so."""

import uuid
from dataclasses import replace
from typing import Any

import pytest

from proxy.acl.decision import FORWARD, Change, Inquiry, Judgement, TopicsUnknown
from proxy.acl.guards.metadata import metadata
from proxy.acl.model import Operation
from proxy.wire.error_codes import ErrorCode
from proxy.wire.primitives import Malformed
from tests.support.authorization import (
    EVERYTHING,
    NOTHING,
    cluster,
    inquiry,
    judged,
    received,
    sent,
    topic,
)
from tests.support.messages import TOPIC_ID as ID
from tests.support.messages import metadata_request as asking
from tests.support.messages import metadata_response as with_throttle_time

HIDDEN = ErrorCode.TOPIC_AUTHORIZATION_FAILED
SEEN = topic(Operation.DESCRIBE, "seen")
MAY_MAKE = topic(Operation.CREATE, "seen")


def metadata_before_brokers_that_make_none(asked: Inquiry) -> Judgement:
    return metadata(replace(asked, brokers_make_topics=False))


def shown(response: Any) -> list[tuple[str | None, int, int]]:
    return [(one.name, one.error_code.value, len(one.partitions)) for one in response.topics]


@pytest.mark.parametrize("version", range(14))
class TestEveryVersion:
    def test_all_topics_are_cut_to_those_that_may_be_described(self, version: int) -> None:
        request = asking(version, None)
        judgement = judged(metadata, request, SEEN)
        assert sent(judgement, request) == request
        response = received(
            judgement, request, with_throttle_time(version, ("seen", 0), ("other", 0))
        )
        assert shown(response) == [("seen", 0, 1)]

    def test_a_hidden_topic_is_not_asked_for_and_denied(self, version: int) -> None:
        request = asking(version, "seen", "other")
        judgement = judged(metadata, request, SEEN | MAY_MAKE)
        assert [one.name for one in sent(judgement, request).topics] == ["seen"]
        response = received(judgement, request, with_throttle_time(version, ("seen", 0)))
        assert shown(response) == [("seen", 0, 1), ("other", 29, 0)]

    def test_what_may_be_seen_and_made_passes_as_it_came(self, version: int) -> None:
        assert judged(metadata, asking(version, "seen"), SEEN | MAY_MAKE) is FORWARD

    def test_create_on_the_cluster_makes_any_topic(self, version: int) -> None:
        rights = SEEN | cluster(Operation.CREATE)
        assert judged(metadata, asking(version, "seen"), rights) is FORWARD

    def test_what_may_not_be_made_is_not(self, version: int) -> None:
        """Versions before 4 cannot say so: they are asked as version 4."""
        request = asking(version, "seen")
        judgement = judged(metadata, request, SEEN)
        assert isinstance(judgement, Change)
        asked_in = 4 if version < 4 else version
        assert judgement.api_version == (4 if version < 4 else None)
        assert not sent(judgement, asking(asked_in)).allow_auto_topic_creation
        missing = with_throttle_time(asked_in, ("seen", 3))
        assert shown(received(judgement, request, missing)) == [("seen", 29, 0)]
        assert shown(received(judgement, request, with_throttle_time(asked_in, ("seen", 0)))) == [
            ("seen", 0, 1)
        ]

    def test_what_has_no_valid_name_is_denied_alike(self, version: int) -> None:
        """Kafka asks for the right to create it before it looks at the name."""
        request = asking(version, "seen")
        judgement = judged(metadata, request, SEEN)
        invalid = with_throttle_time(max(version, 4), ("seen", 17))
        assert shown(received(judgement, request, invalid)) == [("seen", 29, 0)]

    @pytest.mark.parametrize("error", [3, 17])
    def test_where_brokers_make_no_topics_what_is_missing_is_not_denied(
        self, version: int, error: int
    ) -> None:
        """And still not made, should the setting be wrong."""
        request = asking(version, "seen", "other")
        judgement = judged(metadata_before_brokers_that_make_none, request, SEEN)
        asked_in = max(version, 4)
        asked = sent(judgement, asking(asked_in))
        assert [one.name for one in asked.topics] == ["seen"]
        assert asked.allow_auto_topic_creation is False
        response = received(judgement, request, with_throttle_time(asked_in, ("seen", error)))
        assert [one[:2] for one in shown(response)] == [("seen", error), ("other", 29)]

    def test_everything_hidden_asks_for_no_topic(self, version: int) -> None:
        """An empty list is every topic in version 0."""
        request = asking(version, "other")
        judgement = judged(metadata, request, SEEN)
        asked_in = 4 if version < 4 else version
        assert sent(judgement, asking(asked_in)).topics == ()
        response = received(judgement, request, with_throttle_time(asked_in))
        assert shown(response) == [("other", 29, 0)]

    def test_cut_short_it_does_not_parse(self, version: int) -> None:
        question = inquiry(asking(version, "seen", "other"), EVERYTHING)
        for end in range(len(question.body)):
            shorter = type(question)(
                api_version=version,
                body=question.body[:end],
                authority=question.authority,
                topics={},
            )
            with pytest.raises(Malformed):
                metadata(shorter)


@pytest.mark.parametrize("version", [8, 9, 10, 11, 12, 13])
def test_operations_are_those_of_the_acls(version: int) -> None:
    """The broker knows no ACLs: it says that everything is allowed."""
    extra: dict[str, Any] = {"include_topic_authorized_operations": True}
    if version <= 10:
        extra["include_cluster_authorized_operations"] = True
    request = asking(version, "seen", **extra)
    rights = SEEN | MAY_MAKE | cluster(Operation.DESCRIBE)
    judgement = judged(metadata, request, rights)
    response = received(
        judgement, request, with_throttle_time(version, ("seen", 0), operations=0xFFF)
    )
    described, created = 1 << Operation.DESCRIBE, 1 << Operation.CREATE
    assert response.topics[0].topic_authorized_operations == described | created
    if version <= 10:
        assert response.cluster_authorized_operations == described


def test_who_may_not_describe_the_cluster_is_told_no_operations() -> None:
    request = asking(8, "seen", include_cluster_authorized_operations=True)
    judgement = judged(metadata, request, SEEN | cluster(Operation.ALTER) | MAY_MAKE)
    response = received(judgement, request, with_throttle_time(8, ("seen", 0), operations=0xFFF))
    assert response.cluster_authorized_operations == 0


class TestIds:
    def test_a_hidden_topic_keeps_its_name(self) -> None:
        request = asking(12, ids=(ID,))
        judgement = judged(metadata, request, NOTHING, {ID.bytes: "secret"})
        response = received(judgement, request, with_throttle_time(12))
        (entry,) = response.topics
        assert (entry.name, entry.topic_id, entry.error_code) == (None, ID, HIDDEN)

    def test_an_unknown_id_is_no_secret(self) -> None:
        request = asking(12, ids=(ID,))
        judgement = judged(metadata, request, NOTHING, {ID.bytes: None})
        (entry,) = received(judgement, request, with_throttle_time(12)).topics
        assert (entry.name, entry.error_code) == (None, ErrorCode.UNKNOWN_TOPIC_ID)

    def test_names_are_asked_for_all_at_once(self) -> None:
        other = uuid.UUID(int=2)
        with pytest.raises(TopicsUnknown) as unknown:
            judged(metadata, asking(12, ids=(ID, other)), EVERYTHING)
        assert unknown.value.ids == {ID.bytes, other.bytes}

    def test_a_version_without_them_refuses_them(self) -> None:
        request = asking(10, ids=(ID,))
        response = received(judged(metadata, request, EVERYTHING, {ID.bytes: "a"}), request)
        assert shown(response) == [("", 42, 0)]


def test_a_response_cut_short_is_malformed() -> None:
    judgement = judged(metadata, asking(12, None), SEEN)
    assert isinstance(judgement, Change)
    assert judgement.response is not None
    from tests.support.kio_messages import encode

    body = encode(with_throttle_time(12, ("seen", 0), ("other", 0)))
    for end in range(len(body) - 1):
        with pytest.raises(Malformed):
            judgement.response(body[:end])


@pytest.mark.parametrize("version", range(14))
def test_a_list_of_everything_passes_to_a_client_that_may_see_everything(version: int) -> None:
    """Nothing is read of it, however long it is; operations would be those of the broker."""
    asked = asking(version, None)
    assert judged(metadata, asked, EVERYTHING) is FORWARD
    assert judged(metadata, asked, NOTHING) is not FORWARD
    if version >= 8:
        with_operations = replace(asked, include_topic_authorized_operations=True)
        assert judged(metadata, with_operations, EVERYTHING) is not FORWARD
