"""Recorded answers: what the guards and the handler of the ACL APIs make of the broker's responses.

The recorder puts the questions of the differential test to Kafka, which authorizes them itself, and
through the guards in this process to a broker without an authorizer. Both must answer the same, up
to the documented differences. The requests, the broker's responses and the answers are then written
to `RECORD`, with which `tests/proxy/acl/test_recording.py` repeats the test without Kafka.

    python -m tests.support.kafka.acl_differential.recording
"""

import json
import lzma
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from sys import maxsize
from typing import Any, TypeVar

from proxy.acl.authorizer import Authorizer
from proxy.acl.decision import Answer, Authority, Change, Close, Inquiry, Judgement, TopicsUnlisted
from proxy.acl.guards import GUARDS
from proxy.acl.index import AclIndex
from proxy.acl.model import Acl, AuthorizerMode, Operation, PatternType, Permission, ResourceType
from proxy.connection.long_work import SteppedAuthority
from proxy.handlers import acls as acl_api
from proxy.handlers import quotas as quota_api
from proxy.scheduling.steps import in_steps
from proxy.wire import apis
from proxy.wire.codec import decode, encode
from proxy.wire.messages import MetadataRequest, MetadataResponse
from tests.support.acls import MemoryAclStore, whole
from tests.support.kafka.acl_differential.comparison import Versions, answer_all, compare, offered
from tests.support.kafka.acl_differential.profiles import PROFILES, Names, all_creations, creations
from tests.support.kafka.acl_differential.side import (
    AUTHORIZER_PROPERTIES,
    FEATURES,
    PASSWORD,
    Client,
    Side,
)
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.java import KAFKA_VERSION
from tests.support.kafka.wire_client import Address, Outcome
from tests.support.processes import finish
from tests.support.proxy_process import SUPER_USER
from tests.support.quotas import MemoryStore

RECORD = Path(__file__).parent / "record.json.xz"
A = TypeVar("A")
R = TypeVar("R")

SIDE = "rec"
_HOST = "127.0.0.1"
_LISTENER = "LONG"
_REAUTH_MS = 3_600_000
_LISTING_VERSION = 12

Broker = Callable[[int, int, bytes], bytes | None]
"""From API key, version and body of a request to the body of the response; None if the broker
closes the connection."""


class _TopicNames(dict[bytes, str | None]):
    """Topic names by id; no topic has any other id."""

    def __missing__(self, topic_id: bytes) -> None:
        return None


class Judging:
    """Requests of one profile, answered as the proxy does."""

    def __init__(
        self, profile: str, topics: Mapping[bytes, str], broker: Broker, *, pauses: bool = False
    ) -> None:
        """`pauses` judges and changes everything in steps, as long requests are."""
        names = Names(SIDE, profile)
        authority = _authorizer().authority((f"User:{names.user}",), _HOST)
        self._authority: Authority = authority
        if pauses:
            self._authority = SteppedAuthority(authority, lambda: None)
        self._pauses = pauses
        self._topics = _TopicNames(topics)
        self._acls = MemoryAclStore(*map(_acl, creations(names, PROFILES[profile])))
        self._broker = broker

    def answer(self, api_key: int, version: int, body: bytes) -> bytes | None:
        """Return the body of the response; None if the connection is closed instead."""
        may = self._authority.may_administer
        if api_key in apis.ACL_APIS:
            describes = api_key == apis.DESCRIBE_ACLS
            authorized = may(Operation.DESCRIBE if describes else Operation.ALTER)
            acls = self._acls.administered()
            return whole(acl_api.answer(api_key, version, body, acls, authorized=authorized))
        if api_key in apis.QUOTA_APIS:
            authorized = may(Operation.DESCRIBE_CONFIGS)
            return quota_api.answer(api_key, version, body, MemoryStore(), authorized=authorized)
        return self._carried_out(api_key, version, body, self._judged(api_key, version, body))

    def _judged(self, api_key: int, version: int, body: bytes) -> Judgement:
        inquiry = Inquiry(
            api_version=version, body=body, authority=self._authority, topics=self._topics
        )
        try:
            return self._in_steps(GUARDS[api_key], inquiry)
        except TopicsUnlisted:
            return self._in_steps(GUARDS[api_key], replace(inquiry, listed=self._listed()))

    def _carried_out(
        self, api_key: int, version: int, body: bytes, judgement: Judgement
    ) -> bytes | None:
        if isinstance(judgement, Answer):
            return judgement.body
        if isinstance(judgement, Close):
            return None
        change = judgement if isinstance(judgement, Change) else Change()
        sent = body if change.request is None else change.request
        as_version = version if change.api_version is None else change.api_version
        found = self._broker(api_key, as_version, sent)
        if found is None or change.response is None:
            return found
        return self._in_steps(change.response, found)

    def _in_steps(self, function: Callable[[A], R], argument: A) -> R:
        if not self._pauses:
            return function(argument)
        return finish(in_steps(partial(function, argument), max_values=maxsize, seconds=0))

    def _listed(self) -> list[str]:
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        body = self._broker(apis.METADATA, _LISTING_VERSION, encode(request, _LISTING_VERSION))
        assert body is not None
        topics = decode(MetadataResponse, _LISTING_VERSION, body).topics
        return sorted(topic.name for topic in topics if topic.name)


@cache
def _authorizer() -> Authorizer:
    """One with the ACLs of all profiles: some are for everybody."""
    index = AclIndex(map(_acl, all_creations(SIDE)), version=1)
    return Authorizer(index, mode=AuthorizerMode.ENFORCE, report=lambda _: None)


def _acl(entry: Mapping[str, Any]) -> Acl:
    return Acl(
        ResourceType(entry["resource_type"]),
        PatternType(entry["resource_pattern_type"]),
        entry["resource_name"],
        entry["principal"],
        entry["host"],
        Operation(entry["operation"]),
        Permission(entry["permission_type"]),
    )


Exchange = tuple[int, int, bytes, bytes | None]
"""API key, version and body of a request to the broker, and the body of its response."""


@dataclass(frozen=True, slots=True)
class Case:
    """Request of a client, and everything that it causes."""

    label: str
    api_key: int
    version: int
    request: bytes
    exchanges: Sequence[Exchange]
    answer: bytes | None
    """Body of the response to the client; None if its connection is closed instead."""


class _Bodies:
    """Bodies by number: most of them occur many times."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, body: bytes | None) -> int | None:
        if body is None:
            return None
        return self.numbers.setdefault(body.decode("latin-1"), len(self.numbers))


@dataclass(frozen=True, kw_only=True)
class Record:
    """Cases of all profiles, and the topics that they name by id."""

    kafka: str
    """Release of Kafka that gave these answers."""
    topics: Mapping[bytes, str]
    cases: Mapping[str, Sequence[Case]]
    """By profile, in their order."""

    def write(self, path: Path = RECORD) -> None:
        """Write the file."""
        bodies = _Bodies()
        rows = {
            profile: [
                [
                    *(case.label, case.api_key, case.version, bodies.number(case.request)),
                    [[*one[:2], *map(bodies.number, one[2:])] for one in case.exchanges],
                    bodies.number(case.answer),
                ]
                for case in cases
            ]
            for profile, cases in self.cases.items()
        }
        topics = {topic_id.hex(): name for topic_id, name in self.topics.items()}
        content = {
            "kafka": self.kafka,
            "topics": topics,
            "bodies": list(bodies.numbers),
            "cases": rows,
        }
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))

    @classmethod
    def read(cls, path: Path = RECORD) -> "Record":
        """Read it again."""
        content = json.loads(lzma.decompress(path.read_bytes()))
        bodies = [body.encode("latin-1") for body in content["bodies"]]

        def body(number: int | None) -> Any:
            return None if number is None else bodies[number]

        cases = {
            profile: [
                Case(
                    *(label, api_key, version, body(request)),
                    [(*one[:2], *map(body, one[2:])) for one in exchanges],
                    body(answer),
                )
                for label, api_key, version, request, exchanges, answer in rows
            ]
            for profile, rows in content["cases"].items()
        }
        topics = {bytes.fromhex(topic_id): name for topic_id, name in content["topics"].items()}
        return cls(kafka=content["kafka"], topics=topics, cases=cases)


# --- recording


class _JudgedClient(Client):
    """A connection of the proxy to the broker, and the guards before it."""

    def __init__(self, broker: Address, profile: str, topics: Mapping[Any, str]) -> None:
        super().__init__(broker, None)
        self._profile = profile
        self._all_topics = topics
        self.asked: list[Case] = []
        self._exchanges: list[Exchange] = []

    @cached_property
    def _judging(self) -> Judging:
        # Made at the first question: the side makes its topics after the first connections
        topics = {topic_id.bytes: name for topic_id, name in self._all_topics.items()}
        return Judging(self._profile, topics, self._ask_broker)

    def exchange(self, api_key: int, version: int, body: bytes) -> bytes | Outcome:
        self._exchanges = []
        answer = self._judging.answer(api_key, version, body)
        self.asked.append(Case("", api_key, version, body, self._exchanges, answer))
        return Outcome.CLOSED if answer is None else answer

    def _ask_broker(self, api_key: int, version: int, body: bytes) -> bytes | None:
        answer = super().exchange(api_key, version, body)
        found = None if isinstance(answer, Outcome) else answer
        self._exchanges.append((api_key, version, body, found))
        return found


class _JudgedSide(Side):
    """A broker without an authorizer, behind the guards."""

    def __init__(self, broker: Address) -> None:
        self.judged: dict[str, _JudgedClient] = {}
        super().__init__(SIDE, broker, broker)

    def client(self, user: str) -> Client:
        profile = user.removeprefix(f"{SIDE}.")
        if profile not in PROFILES:  # the administrator
            client = Client(self._address, None)
        else:
            client = self.judged[profile] = _JudgedClient(self._address, profile, self.topics)
        self._clients.append(client)
        return client

    def cases(self, answers: Mapping[str, str]) -> dict[str, list[Case]]:
        """Return what was asked, by profile."""
        labels: dict[str, list[str]] = {profile: [] for profile in PROFILES}
        for case in answers:
            profile, _, label = case.partition(": ")
            labels[profile].append(label)
        return {
            profile: [
                replace(case, label=label)
                for label, case in zip(names, self.judged[profile].asked, strict=True)
            ]
            for profile, names in labels.items()
        }


def record(cluster: KafkaCluster) -> Record:
    """Ask Kafka and the guards; raises AssertionError on an undocumented difference."""
    authorizing, plain = cluster.address(listener=_LISTENER), cluster.address()
    versions = _understood(offered(authorizing))
    answers = []
    sides = Side("kaf", authorizing, plain), _JudgedSide(plain)
    for side in sides:
        with closing(side):
            side.prepare(administers_users=False)
            answers.append(answer_all(side, versions))
    compare(*answers)
    topics = {topic_id.bytes: name for topic_id, name in sides[1].topics.items()}
    return Record(kafka=KAFKA_VERSION, topics=topics, cases=sides[1].cases(answers[1]))


def _understood(offer: Versions) -> Versions:
    both = {}
    for key, (low, high) in offer.items():
        api = apis.APIS.get(key)
        if api is not None and api.kind is not apis.Kind.NOT_OFFERED:
            low, high = max(low, api.min_version), min(high, api.max_version)
            if low <= high:
                both[key] = low, high
    return both


def main() -> None:
    """Record with Kafka, and write `RECORD`."""
    with KafkaCluster(
        nodes=1,
        properties=AUTHORIZER_PROPERTIES,
        features=FEATURES,
        sasl_listeners={_LISTENER: _REAUTH_MS},
    ) as cluster:
        cluster.add_scram_user(SUPER_USER, PASSWORD)
        found = record(cluster)
    found.write()
    count = sum(map(len, found.cases.values()))
    print(f"{count} cases in {RECORD.stat().st_size} bytes")  # noqa: T201 - its result


if __name__ == "__main__":
    main()
