"""Quotas of groups, by the groups that a client's login gave it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.quota.callback import ClientPrincipal, ClientQuotaType, load_callback
from proxy.quota.group_quotas import GroupQuotas
from proxy.quota.model import DEFAULT, Default, QuotaEntity, QuotaKey
from proxy.quota.shared_memory import UsageTable, WindowConfig
from proxy.quota.throttle import Mode
from proxy.quota.worker_quotas import WorkerQuotas

PRODUCE, FETCH = ClientQuotaType.PRODUCE, ClientQuotaType.FETCH
ANALYSTS, INTERNS = QuotaEntity(user="Group:analysts"), QuotaEntity(user="Group:interns")
MEMBER = ClientPrincipal("User:alice", ("Group:analysts", "Group:interns"))


def quotas(*limits: tuple[QuotaEntity, float], share: str = "together") -> GroupQuotas:
    callback = load_callback("proxy.quota.group_quotas:GroupQuotas")
    assert isinstance(callback, GroupQuotas)
    callback.configure({"share": share})
    for entity, limit in limits:
        callback.update_quota(PRODUCE, entity, limit)
    return callback


def applied(callback: GroupQuotas, who: str = MEMBER) -> tuple[dict[str, str], float | None]:
    tags = callback.quota_metric_tags(PRODUCE, who, "c")
    return dict(tags), callback.quota_limit(PRODUCE, tags)


@pytest.mark.parametrize("share", ["together", "each"])
def test_members_share_the_quota_of_their_group_or_each_has_one(share: str) -> None:
    callback = quotas((ANALYSTS, 100.0), share=share)
    for name in ("alice", "bob"):
        who = ClientPrincipal(f"User:{name}", ("Group:analysts",))
        own = {"user": name} if share == "each" else {}
        assert applied(callback, who) == ({"group": "analysts"} | own, 100.0)


def test_of_several_groups_the_lowest_limit_decides() -> None:
    assert applied(quotas((ANALYSTS, 100.0), (INTERNS, 5.0)))[1] == 5.0
    assert applied(quotas((ANALYSTS, 5.0), (INTERNS, 5.0)))[0] == {"group": "analysts"}


@pytest.mark.parametrize(
    "own",
    [
        QuotaEntity(user="alice"),
        QuotaEntity(user="alice", client_id=DEFAULT),
        QuotaEntity(user="alice", client_id="c"),
    ],
)
def test_what_names_the_user_decides_before_its_groups(own: QuotaEntity) -> None:
    callback = quotas((ANALYSTS, 1.0), (own, 500.0))
    assert applied(callback)[1] == 500.0
    callback.remove_quota(PRODUCE, own)
    assert applied(callback)[1] == 1.0


@pytest.mark.parametrize("default", [QuotaEntity(user=DEFAULT), QuotaEntity(client_id="c")])
def test_groups_decide_before_defaults(default: QuotaEntity) -> None:
    callback = quotas((ANALYSTS, 500.0), (default, 1.0))
    assert applied(callback)[1] == 500.0
    callback.remove_quota(PRODUCE, ANALYSTS)
    assert applied(callback)[1] == 1.0


@pytest.mark.parametrize("client_id", ["c", DEFAULT])
def test_an_entry_of_a_group_with_a_client_id_has_no_effect_on_members(
    client_id: str | Default,
) -> None:
    with_client = QuotaEntity(user="Group:analysts", client_id=client_id)
    assert applied(quotas((with_client, 1.0)))[1] is None
    callback = quotas((ANALYSTS, 500.0), (with_client, 1.0))
    assert applied(callback)[1] == 500.0
    callback.remove_quota(PRODUCE, with_client)
    assert applied(callback)[1] == 500.0


def test_each_type_has_its_own_group() -> None:
    callback = quotas((ANALYSTS, 1.0))
    callback.update_quota(FETCH, INTERNS, 2.0)
    assert callback.quota_metric_tags(FETCH, MEMBER, "c") == {"group": "interns"}
    assert callback.quota_metric_tags(PRODUCE, MEMBER, "c") == {"group": "analysts"}


@pytest.mark.parametrize(
    "who",
    [
        "User:Group:analysts",
        "User:analysts",
        "Group:analysts",
        ClientPrincipal("User:Group:analysts"),
        ClientPrincipal("User:alice", ("Group:Group:analysts", "Group:analyst")),
    ],
)
def test_whoever_has_the_name_of_a_group_is_no_member(who: str) -> None:
    """A user called `Group:analysts` neither uses the group's quota nor has one of its size."""
    assert applied(quotas((ANALYSTS, 100.0)), who)[1] is None


@pytest.mark.parametrize("configs", [{"share": "all"}, {"share": None}, {"shares": "each"}])
def test_configurations_that_mean_nothing(configs: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"share"):
        GroupQuotas().configure(configs)


def test_a_worker_meters_a_client_by_the_groups_that_it_has_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not by those that one of the same name had: answers are remembered for both together."""
    monkeypatch.setattr("proxy.quota.guarded_callback.MAX_WAIT_SECONDS", 30.0)
    callback = GroupQuotas()
    table = UsageTable(1, WindowConfig(), rows=64)
    worker = WorkerQuotas(table, 0, mode=Mode.ENFORCE, static={}, custom=callback)
    worker.apply({ANALYSTS: {QuotaKey.PRODUCER_BYTE_RATE: 100.0}})
    member = worker.meters("User:alice", "c", ("Group:analysts",))
    assert worker.meters("User:bob", "d", ("Group:analysts",)) == member
    assert worker.meters("User:alice", "c") == {}
    assert worker.meters("User:alice", "c", ("Group:analysts",)) == member
    worker.close()


ENTITIES = st.sampled_from(
    [
        ANALYSTS,
        INTERNS,
        QuotaEntity(user="alice"),
        QuotaEntity(user="alice", client_id="c"),
        QuotaEntity(user=DEFAULT),
        QuotaEntity(client_id="c"),
        QuotaEntity(user="Group:analysts", client_id="c"),
    ]
)


@given(
    limits=st.dictionaries(ENTITIES, st.sampled_from([10.0, 20.0, 30.0])),
    share=st.sampled_from(["together", "each"]),
    who=st.sampled_from(
        [MEMBER, ClientPrincipal("User:alice"), ClientPrincipal("User:Group:analysts")]
    ),
)
def test_what_is_explained_is_what_applies(
    limits: dict[QuotaEntity, float], share: str, who: ClientPrincipal
) -> None:
    callback = quotas(*limits.items(), share=share)
    stored = {entity: {QuotaKey.PRODUCER_BYTE_RATE: limit} for entity, limit in limits.items()}
    found = callback.explain(stored, {}, QuotaKey.PRODUCER_BYTE_RATE, who, "c").applied
    if found is None:
        assert applied(callback, who)[1] is None
    else:
        assert (found.tags, found.limit) == applied(callback, who)
