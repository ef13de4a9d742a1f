"""What the store's brokers do not do is answered per entity, and the connection lives on."""

import pytest

from proxy.quota.model import Changes, QuotaEntity, QuotaKey
from proxy.store import StoreRefused
from proxy.wire.error_codes import ErrorCode
from tests.support.quotas import DONE, MemoryStore, Op, Parts, alter, describe

PRODUCER = QuotaKey.PRODUCER_BYTE_RATE
FIVE: list[Op] = [(PRODUCER, 5.0)]
U: Parts = [("user", "u")]
V: Parts = [("user", "v")]
WHY = "The brokers refused the change: for a reason of theirs"


class Refusing(MemoryStore):
    """Its brokers do nothing."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__()
        self._code = code
        self.asked: list[Changes] = []

    def alter_quotas(self, changes: Changes) -> None:
        self.asked.append(changes)
        raise StoreRefused(self._code, WHY)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    "code", [ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
)
def test_entities_keep_their_own_mistakes(version: int, code: ErrorCode) -> None:
    """And one that is named twice its own refusal, though the first of them was asked for."""
    store = Refusing(code)
    twice: Parts = [("user", "w")]
    empty: Parts = [("user", "")]
    entries = [(U, FIVE), (empty, FIVE), (V, FIVE), (twice, FIVE), (twice, FIVE)]
    refused = (code.name.lower(), WHY)
    assert alter(store, *entries, version=version) == [
        refused,
        ("invalid_request", "Empty user not supported"),
        refused,
        ("invalid_request", "Ignoring duplicate entity"),
    ]
    assert store.asked == [{QuotaEntity(user=name): {PRODUCER: 5.0} for name in "uvw"}]


def test_brokers_are_not_asked_for_what_is_not_to_be_done() -> None:
    """To validate only, without a right, or when every entity is wrong."""
    store = Refusing(ErrorCode.BROKER_NOT_AVAILABLE)
    assert alter(store, (U, FIVE), validate_only=True) == [DONE]
    [(unauthorized, _)] = alter(store, (U, FIVE), authorized=False)
    assert unauthorized == "cluster_authorization_failed"
    [(wrong, _)] = alter(store, (U, [(PRODUCER, 0.5)]))
    assert wrong == "invalid_request"
    assert store.asked == []


def test_what_is_set_can_be_described_all_the_same() -> None:
    store = Refusing(ErrorCode.BROKER_NOT_AVAILABLE)
    store.quotas = {QuotaEntity(user="u"): {PRODUCER: 5.0}}
    alter(store, (V, FIVE))
    assert describe(store) == ["user:u"]
