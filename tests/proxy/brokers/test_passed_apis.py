"""APIs that pass to brokers where they, and not the proxy, have users, ACLs and quotas."""

import pytest

from proxy.brokers.broker_view import BrokerView
from proxy.brokers.discovery import DiscoveredBroker
from proxy.connection.frames import route_key
from proxy.wire.api_versions import UpstreamVersions
from proxy.wire.apis import ACL_APIS, CREDENTIAL_APIS, QUOTA_APIS, offers
from tests.support.playbook import VERSIONS

ALL = ACL_APIS | CREDENTIAL_APIS | QUOTA_APIS


def view(
    passes: frozenset[int], not_answered: frozenset[int], versions: UpstreamVersions = VERSIONS
) -> BrokerView:
    broker = DiscoveredBroker(None, "broker", 9092, versions=versions)
    return BrokerView(broker, None, passes=passes, not_answered=not_answered)


@pytest.mark.parametrize("key", sorted(ALL))
def test_they_are_offered_and_forwarded_as_the_broker_has_them(key: int) -> None:
    found = view(ALL, ALL)
    assert found.api_versions is not None
    low, high = found.api_versions.offers[key]
    assert high == VERSIONS.apis[key][1]
    assert {route_key(key, version) for version in range(low, high + 1)} <= found.routes.keys()


def test_one_that_the_broker_lacks_is_not_offered() -> None:
    """Not even in the versions in which the proxy would answer it."""
    apis = {key: one for key, one in VERSIONS.apis.items() if key not in ALL}
    found = view(ALL, ALL, UpstreamVersions(apis=apis))
    assert found.api_versions is not None
    assert not ALL & found.api_versions.offers.keys()


def test_what_is_neither_passed_nor_answered_is_not_offered() -> None:
    found = view(frozenset(), CREDENTIAL_APIS)
    assert found.api_versions is not None
    assert not CREDENTIAL_APIS & found.api_versions.offers.keys()
    assert found.api_versions.offers.keys() >= ACL_APIS


def test_elsewhere_nothing_changes() -> None:
    found = view(frozenset(), frozenset())
    assert found.api_versions is not None
    assert found.api_versions.offers == offers(VERSIONS.apis)
    assert not any(key >> 16 in ALL for key in found.routes)
