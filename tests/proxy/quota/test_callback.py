"""The contract of KIP-257, its default, how one's own is found, and the two examples."""

import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from proxy.errors import ConfigError
from proxy.quota.callback import (
    ClientQuotaType,
    Cluster,
    DefaultQuotaCallback,
    QuotaCallback,
    load_callback,
)
from proxy.quota.model import DEFAULT, QuotaEntity, QuotaKey
from tests.support.quota_callbacks.groups import QuotaGroups
from tests.support.quota_callbacks.partitions import PartitionShare

PRODUCE, FETCH, REQUEST = (ClientQuotaType.PRODUCE, ClientQuotaType.FETCH, ClientQuotaType.REQUEST)


def limit_for(
    callback: QuotaCallback, kind: ClientQuotaType, user: str, client_id: str = "c"
) -> float | None:
    tags = callback.quota_metric_tags(kind, f"User:{user}", client_id)
    return callback.quota_limit(kind, tags)


def test_the_default_is_the_precedence() -> None:
    callback = DefaultQuotaCallback({QuotaKey.PRODUCER_BYTE_RATE: 9.0})
    assert limit_for(callback, PRODUCE, "u") == 9.0
    assert limit_for(callback, FETCH, "u") is None
    callback.update_quota(PRODUCE, QuotaEntity(user="u"), 5.0)
    assert limit_for(callback, PRODUCE, "u") == 5.0
    callback.remove_quota(PRODUCE, QuotaEntity(user="u"))
    callback.remove_quota(PRODUCE, QuotaEntity(user="never set"))
    assert limit_for(callback, PRODUCE, "u") == 9.0


@pytest.fixture
def module() -> Iterator[types.ModuleType]:
    made = types.ModuleType("made_up_quotas")
    sys.modules["made_up_quotas"] = made
    yield made
    del sys.modules["made_up_quotas"]


def test_a_class_is_found_by_its_name(module: types.ModuleType) -> None:
    module.Mine = QuotaGroups  # type: ignore[attr-defined]
    assert isinstance(load_callback("made_up_quotas:Mine"), QuotaGroups)


class Half:
    def configure(self, configs: object) -> None:
        pass


class Exploding:
    def __init__(self) -> None:
        raise SystemError("two\nlines")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "must be package.module:Class"),
        ("made_up_quotas", "must be package.module:Class"),
        ("made_up_quotas:", "must be package.module:Class"),
        ("made_up_quotas:a.b", "must be package.module:Class"),
        ("made_up_quotas:Missing", "cannot be created: AttributeError"),
        ("no_such_module:Mine", "cannot be created: ModuleNotFoundError"),
        ("made_up_quotas:Half", "has no quota_metric_tags, quota_limit"),
        ("made_up_quotas:Exploding", "cannot be created: SystemError: two$"),
    ],
)
def test_a_class_that_cannot_be_used_is_one_line(
    module: types.ModuleType, name: str, problem: str
) -> None:
    module.Half, module.Exploding = Half, Exploding  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=problem):
        load_callback(name)


def groups() -> QuotaGroups:
    callback = QuotaGroups()
    callback.configure({"groups": {"analytics": ["alice", "batch-*"], "web": ["batch-web-*"]}})
    return callback


def test_a_group_shares_one_quota() -> None:
    """The longer beginning of a name wins."""
    callback = groups()
    for user, limit in (("analytics", 100.0), ("web", 2.0)):
        callback.update_quota(PRODUCE, QuotaEntity(user=user), limit)
    callback.update_quota(PRODUCE, QuotaEntity(user="alice", client_id="c"), 1.0)
    for principal in ("User:alice", "User:batch-7"):
        assert callback.quota_metric_tags(PRODUCE, principal, "c") == {"group": "analytics"}
    assert limit_for(callback, PRODUCE, "alice") == 100.0
    assert limit_for(callback, PRODUCE, "batch-web-1") == 2.0
    callback.update_quota(PRODUCE, QuotaEntity(user="analytics"), 200.0)
    assert limit_for(callback, PRODUCE, "batch-7") == 200.0


def test_without_a_group_or_its_quota_the_precedence_applies() -> None:
    callback = groups()
    callback.update_quota(PRODUCE, QuotaEntity(user=DEFAULT), 10.0)
    callback.update_quota(FETCH, QuotaEntity(user="analytics"), 100.0)
    assert limit_for(callback, PRODUCE, "alice") == 10.0
    assert limit_for(callback, PRODUCE, "bob") == 10.0
    assert limit_for(callback, FETCH, "bob") is None
    callback.remove_quota(FETCH, QuotaEntity(user="analytics"))
    assert limit_for(callback, FETCH, "alice") is None


@pytest.mark.parametrize(
    "configs",
    [
        {},
        {"groups": None},
        {"groups": ["alice"]},
        {"groups": {"g": "alice"}},
        {"groups": {"g": [1]}},
        {"groups": {"": ["alice"]}},
        {"groups": {"g": ["alice"], "h": ["alice"]}},
    ],
)
def test_groups_that_make_no_sense_are_refused(configs: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"must be|is in two groups"):
        QuotaGroups().configure(configs)


def test_a_limit_is_proportional_to_the_partitions_led_here() -> None:
    callback = PartitionShare()
    callback.configure({"topics": {"u": ["orders", "pay-*"]}})
    for entity in (QuotaEntity(user="u"), QuotaEntity(user="v")):
        for kind in (PRODUCE, REQUEST):
            callback.update_quota(kind, entity, 1_200.0)
    assert limit_for(callback, PRODUCE, "u") == 1_200.0, "nothing is known of the cluster yet"

    cluster = Cluster(
        leaders={"orders": [1, 2, 3], "pay-x": [1, None, 2], "other": [1, 1]}, behind=frozenset({1})
    )
    assert callback.update_cluster_metadata(cluster)
    assert not callback.update_cluster_metadata(cluster)

    assert limit_for(callback, PRODUCE, "u") == 1_200.0 * 2 / 6
    assert limit_for(callback, PRODUCE, "v") == 1_200.0 * 4 / 8
    assert limit_for(callback, REQUEST, "u") == 1_200.0


def test_the_share_follows_the_leaders_and_never_is_nothing() -> None:
    callback = PartitionShare()
    callback.configure({})
    callback.update_quota(FETCH, QuotaEntity(client_id="c"), 900.0)
    for leaders, limit in (([1, 2, 2], 300.0), ([1, 1, 1], 900.0), ([2, 2, 2], 300.0)):
        callback.update_cluster_metadata(
            Cluster(leaders={"t": cast("list[int | None]", leaders)}, behind=frozenset({1}))
        )
        assert limit_for(callback, FETCH, "u") == limit


@pytest.mark.parametrize("topics", [None, [], {"u": "t"}, {"u": [3]}, {"u": [""]}, {1: ["t"]}])
def test_topics_that_make_no_sense_are_refused(topics: object) -> None:
    with pytest.raises(ValueError, match="must be a mapping"):
        PartitionShare().configure({"topics": topics})


def test_the_example_of_the_docs_works() -> None:
    page = Path(__file__).parents[3] / "docs" / "quotas.md"
    (code,) = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, type[QuotaCallback]] = {}
    exec(code, names)  # noqa: S102 - our own docs
    callback = names["ByDepartment"]()
    callback.configure({})
    callback.update_quota(PRODUCE, QuotaEntity(user="sales"), 5.0)
    tags = callback.quota_metric_tags(PRODUCE, "User:sales-berlin", "any")
    assert callback.quota_limit(PRODUCE, tags) == 5.0
    assert tags == callback.quota_metric_tags(PRODUCE, "User:sales-paris", "other")
