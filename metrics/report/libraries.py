"""Table of client libraries: the first version that re-authenticates, and its source.

`software` are the library's names in ApiVersions (KIP-511), in lower case; a library without a name
cannot be recognised. A version of None: no release re-authenticates so far.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """Client library and its support for re-authentication."""

    name: str
    software: tuple[str, ...]
    since: str | None
    """The first version that re-authenticates (KIP-368); None if no release does so far."""
    note: str
    """Advice for the upgrade."""
    source: str


LIBRARIES = (
    Library(
        name="Apache Kafka Java clients",
        software=("apache-kafka-java",),
        since="2.2.0",
        note="all mechanisms; sessions with aws-msk-iam-auth 2.0.3 and 2.1.1 may be too short",
        source="KIP-368, Compatibility, Deprecation, and Migration Plan; aws/aws-msk-iam-auth #180",
    ),
    Library(
        name="librdkafka, and confluent-kafka for Python, Go, .NET, JavaScript",
        software=(
            "librdkafka",
            "confluent-kafka-python",
            "confluent-kafka-go",
            "confluent-kafka-dotnet",
            "confluent-kafka-javascript",
        ),
        since="2.2.0",
        note="the version of librdkafka counts; confluent-kafka has the same numbers",
        source="confluentinc/librdkafka CHANGELOG.md, v2.2.0 (#4301)",
    ),
    Library(
        name="franz-go",
        software=("kgo",),
        since="1.0.0",
        note="1.9.1 leaves more time before the expiry; 1.21.4 fixes a race",
        source="twmb/franz-go README.md (KIP-368) and CHANGELOG.md",
    ),
    Library(
        name="sarama",
        software=("sarama",),
        since="1.33.0",
        note="take 1.34.0 or later, which fixes how it reads responses",
        source="IBM/sarama #2060; release v1.34.0 (#2234)",
    ),
    Library(
        name="kafkajs",
        software=("kafkajs",),
        since="1.11.0",
        note="take 1.16.0 or later, which re-authenticates to all brokers (#1241), and lifetimes "
        "of 30 s or more: it does so 10 s before the end",
        source="tulios/kafkajs CHANGELOG.md, 1.11.0 (#496)",
    ),
    Library(
        name="kafka-python",
        software=("kafka-python",),
        since="3.0.0",
        note="all mechanisms",
        source="dpkp/kafka-python #3029, and its table of supported KIPs",
    ),
    Library(
        name="@platformatic/kafka",
        software=("platformatic-kafka",),
        since="1.26.0",
        note="take 1.29.0 or later, which reports the connection after a re-authentication (#231)",
        source="platformatic/kafka #204, #211, released as v1.26.0",
    ),
    Library(
        name="kafka-go",
        software=(),
        since=None,
        note="no release yet; franz-go and sarama re-authenticate",
        source="segmentio/kafka-go #492, open",
    ),
    Library(
        name="aiokafka",
        software=("aiokafka",),
        since=None,
        note="no release yet; confluent-kafka has an asyncio client",
        source="aio-libs/aiokafka #1080, and #1105, open",
    ),
)


def library_of(software: str | None) -> Library | None:
    """Return the library with this name; None if it is unknown."""
    if software is None:
        return None
    return next((each for each in LIBRARIES if software.lower() in each.software), None)


def is_older(version: str | None, since: str) -> bool | None:
    """Compare versions by their numbers; return None if one of them has no numbers.

    `2.6.1-librdkafka-2.2.0` is a binding's version, then the library's: both use the same scale.
    """
    given, wanted = _numbers(version), _numbers(since)
    if not given or not wanted:
        return None
    width = max(len(given), len(wanted))
    return given + (0,) * (width - len(given)) < wanted + (0,) * (width - len(wanted))


def _numbers(version: str | None) -> tuple[int, ...]:
    core = (version or "").lower().removeprefix("v").split("-")[0].split("+")[0]
    numbers = []
    for part in core.split("."):
        if not (part.isascii() and part.isdigit()) or len(part) > 9:
            break
        numbers.append(int(part))
    return tuple(numbers)
