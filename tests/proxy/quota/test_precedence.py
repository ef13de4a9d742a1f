"""KIP-55's order of precedence, row by row, and who shares what."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.quota.model import DEFAULT, QuotaEntity, QuotaKey, sanitize
from proxy.quota.precedence import Index, IpLimits, StaticDefaults, explain, limit_of, tags_of

KEY = QuotaKey.PRODUCER_BYTE_RATE
OTHER = QuotaKey.CONSUMER_BYTE_RATE
STATIC: StaticDefaults = {KEY: 9.0}

ROWS: list[tuple[int, QuotaEntity, dict[str, str]]] = [
    (1, QuotaEntity(user="u", client_id="c"), {"user": "u", "client-id": "c"}),
    (2, QuotaEntity(user="u", client_id=DEFAULT), {"user": "u", "client-id": "c"}),
    (3, QuotaEntity(user="u"), {"user": "u", "client-id": ""}),
    (4, QuotaEntity(user=DEFAULT, client_id="c"), {"user": "u", "client-id": "c"}),
    (5, QuotaEntity(user=DEFAULT, client_id=DEFAULT), {"user": "u", "client-id": "c"}),
    (6, QuotaEntity(user=DEFAULT), {"user": "u", "client-id": ""}),
    (7, QuotaEntity(client_id="c"), {"user": "", "client-id": "c"}),
    (8, QuotaEntity(client_id=DEFAULT), {"user": "", "client-id": "c"}),
]


SHARED_BY = {
    ("u", "c"): {("u", "c")},
    ("u", ""): {("u", "c"), ("u", "d"), ("u", "")},
    ("", "c"): {("u", "c"), ("v", "c")},
}
"""Clients that share a quota, by the user and the client id in its tags."""


@pytest.mark.parametrize(("row", "entity", "tags"), ROWS)
def test_a_row_applies_when_those_before_it_are_not_set(
    row: int, entity: QuotaEntity, tags: dict[str, str]
) -> None:
    """Every row that follows is set too, with another limit, and so is the static default."""
    quotas = {other: {KEY: float(number)} for number, other, _ in ROWS if number >= row}
    assert tags_of(quotas, STATIC, KEY, "u", "c") == tags
    assert limit_of(quotas, STATIC, KEY, tags) == row
    clients = [("u", "c"), ("u", "d"), ("v", "c"), ("u", "")]
    sharing = {one for one in clients if tags_of({entity: {KEY: 1.0}}, {}, KEY, *one) == tags}
    assert sharing == SHARED_BY[tags["user"], tags["client-id"]]

    explained = explain(quotas, STATIC, KEY, "u", "c")
    assert explained.applied is not None
    assert explained.applied.entity == entity
    assert explained.applied.source == entity.path
    assert [one.row for one in explained.considered] == list(range(1, 10))
    assert [one.limit for one in explained.considered] == [
        None if number < row else float(number) for number in range(1, 10)
    ]


def test_the_static_default_is_shared_by_the_client_id_of_all_users() -> None:
    """The KIP's step 8."""
    tags = tags_of({}, STATIC, KEY, "u", "c")
    assert tags == tags_of({}, STATIC, KEY, "v", "c") == {"user": "", "client-id": "c"}
    assert limit_of({}, STATIC, KEY, tags) == 9.0


def test_without_any_row_the_client_is_not_throttled() -> None:
    """The KIP's step 9."""
    assert explain({}, {}, KEY, "u", "c").applied is None
    assert limit_of({}, {}, KEY, tags_of({}, {}, KEY, "u", "c")) is None


def test_the_specs_sample_configuration() -> None:
    """KIP-55, "Sample configuration" and "Quota Identifier", sentence by sentence."""
    quotas = {
        QuotaEntity(user=DEFAULT): {KEY: 10_000.0, OTHER: 20_000.0},
        QuotaEntity(user="user1"): {KEY: 1_024.0, OTHER: 2_048.0},
        QuotaEntity(user="user2"): {KEY: 4_096.0, OTHER: 8_192.0},
        QuotaEntity(user="user2", client_id="clientA"): {KEY: 10.0, OTHER: 30.0},
        QuotaEntity(user="user2", client_id="clientB"): {KEY: 20.0, OTHER: 40.0},
        QuotaEntity(client_id="clientA"): {KEY: 100.0, OTHER: 200.0},
    }

    def applies(user: str, client_id: str) -> tuple[str, str, float | None]:
        tags = tags_of(quotas, {}, KEY, user, client_id)
        return tags["user"], tags["client-id"], limit_of(quotas, {}, KEY, tags)

    assert applies("user1", "clientA") == ("user1", "", 1_024.0)
    assert applies("user1", "clientX") == ("user1", "", 1_024.0)
    assert applies("user2", "clientA") == ("user2", "clientA", 10.0)
    assert applies("user2", "clientB") == ("user2", "clientB", 20.0)
    assert applies("user2", "clientC") == ("user2", "", 4_096.0)
    assert applies("user3", "clientA") == ("user3", "", 10_000.0)
    del quotas[QuotaEntity(user=DEFAULT)]
    assert applies("user3", "clientA") == ("", "clientA", 100.0)
    assert applies("user4", "clientA") == ("", "clientA", 100.0)
    assert applies("user3", "clientB") == ("", "clientB", None)


def test_keys_are_looked_up_by_themselves() -> None:
    """A user's producer quota says nothing of its consumers."""
    quotas = {QuotaEntity(user="u"): {KEY: 1.0}, QuotaEntity(client_id="c"): {OTHER: 2.0}}
    assert tags_of(quotas, {}, KEY, "u", "c") == {"user": "u", "client-id": ""}
    assert tags_of(quotas, {}, OTHER, "u", "c") == {"user": "", "client-id": "c"}


@pytest.mark.parametrize("row", [2, 3, 5, 6, 8])
def test_leaving_out_the_client_id_does_not_get_around_a_quota(row: int) -> None:
    """A client may send any client id, or none."""
    quotas = {entity: {KEY: float(number)} for number, entity, _ in ROWS if number >= row}
    assert limit_of(quotas, {}, KEY, tags_of(quotas, {}, KEY, "u", "")) == row


def test_a_client_may_be_named_default() -> None:
    """`<default>` is an ordinary name: it neither gets nor sets everybody's quota."""
    quotas = {QuotaEntity(user="<default>"): {KEY: 1.0}}
    assert limit_of(quotas, {}, KEY, tags_of(quotas, {}, KEY, "u", "c")) is None
    assert limit_of(quotas, {}, KEY, tags_of(quotas, {}, KEY, "<default>", "c")) == 1.0
    tags = tags_of({}, {}, KEY, "u", "<default>")
    assert tags == {"user": "", "client-id": "<default>"}


some_names = st.sampled_from(["u", "v", "c", "<default>", "a b", "é:/*", "%20", "+"])
some_entities = st.one_of(
    st.builds(QuotaEntity, user=some_names | st.just(DEFAULT)),
    st.builds(QuotaEntity, client_id=some_names | st.just(DEFAULT)),
    st.builds(
        QuotaEntity, user=some_names | st.just(DEFAULT), client_id=some_names | st.just(DEFAULT)
    ),
)


@given(
    quotas=st.dictionaries(
        some_entities,
        st.dictionaries(
            st.sampled_from([KEY, OTHER]), st.integers(1, 10**6).map(float), min_size=1
        ),
    ),
    user=some_names,
    client_id=some_names | st.just(""),
    static=st.sampled_from([{}, STATIC]),
)
def test_tags_lead_to_the_limit_that_applies(
    quotas: dict[QuotaEntity, dict[QuotaKey, float]],
    user: str,
    client_id: str,
    static: StaticDefaults,
) -> None:
    """The two questions of KIP-257 together give what the order of precedence gives."""
    applied = explain(quotas, static, KEY, user, client_id).applied
    tags = tags_of(quotas, static, KEY, user, client_id)
    assert limit_of(quotas, static, KEY, tags) == (applied.limit if applied else None)
    assert applied is None or applied.tags == tags
    assert tags["user"] in ("", sanitize(user))


def test_tags_nobody_uses_have_no_limit() -> None:
    """KIP-257: null, after the quota in use has become another."""
    quotas = {QuotaEntity(user="u"): {KEY: 1.0}}
    assert limit_of(quotas, {}, KEY, {"user": "u", "client-id": "c"}) is None
    assert limit_of(quotas, {}, KEY, {"user": "u"}) is None
    assert limit_of(quotas, {}, KEY, {}) is None


def test_rows_say_who_shares() -> None:
    assert [one.shared_by for one in explain({}, {}, KEY, "u", "c").considered][0::2] == [
        "only user u with client id 'c'",
        "all clients of user u without a quota of their own",
        "only user u with client id 'c'",
        "all users with client id 'c'",
        "all users with client id 'c'",
    ]


def test_addresses_have_their_own_or_the_default_limit() -> None:
    """KIP-612; however an entity's address is written."""
    rate = QuotaKey.CONNECTION_CREATION_RATE
    quotas = {
        QuotaEntity(ip="2001:DB8:0::1"): {rate: 5.0},
        QuotaEntity(ip="::ffff:10.0.0.1"): {rate: 7.0},
        QuotaEntity(ip=DEFAULT): {rate: 2.0},
    }
    limits = IpLimits(quotas)
    assert limits.limit("2001:db8::1") == (5.0, "2001:db8::1")
    assert limits.limit("10.0.0.1") == (7.0, "10.0.0.1")
    assert limits.limit("10.0.0.2") == (2.0, "<default>")
    assert IpLimits({}).limit("10.0.0.2") is None


NAMES = st.sampled_from(["u", "v", "c", "d", DEFAULT, None])
ENTITIES = st.builds(lambda user, client: (user, client), NAMES, NAMES).filter(any)


@given(
    st.dictionaries(ENTITIES, st.sets(st.sampled_from([KEY, OTHER]), min_size=1), max_size=8),
    st.sampled_from(["u", "v", "", "d"]),
    st.sampled_from(["c", "d", "", "<default>"]),
    st.booleans(),
)
def test_the_index_finds_what_explain_says(
    entries: dict[tuple[Any, Any], set[QuotaKey]], user: str, client_id: str, static: bool
) -> None:
    """One is asked for each connection, the other for people."""
    quotas = {
        QuotaEntity(user=who, client_id=what): {key: float(n) for key in keys}
        for n, ((who, what), keys) in enumerate(entries.items(), 1)
    }
    defaults = STATIC if static else {}
    applied = Index(quotas, defaults).applied(KEY, user, client_id)
    said = explain(quotas, defaults, KEY, user, client_id).applied
    if said is None or applied is None:
        assert (said, applied) == (None, None)
        return
    assert (applied.limit, applied.tags) == (said.limit, said.tags)
    names = applied.names
    entity = None if names is None else QuotaEntity(user=names[0], client_id=names[1])
    assert entity == said.entity
