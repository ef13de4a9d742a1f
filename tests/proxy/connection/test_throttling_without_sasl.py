"""A client that logs in nowhere falls under the quotas of the client id that its requests have."""

import pytest

from proxy.config import Quotas
from proxy.quota.model import DEFAULT, QuotaEntity
from proxy.quota.shared_memory import UsageTable, WindowConfig
from proxy.worker.quota_service import QuotaService
from sasl.identity import Identity
from tests.support.frames import produce, request
from tests.support.playbook import Playbook, everything
from tests.support.quotas import PLAIN, PRODUCER, RATE, MemoryStore

APP, EVERY = QuotaEntity(client_id="app"), QuotaEntity(client_id=DEFAULT)


def service(entity: QuotaEntity) -> QuotaService:
    store = MemoryStore()
    store.alter_quotas({entity: {PRODUCER: RATE}})
    table = UsageTable(1, WindowConfig(), rows=64)
    return QuotaService(Quotas.model_validate({"mode": "enforce"}), store, table, 0)


def admitted(quotas: QuotaService) -> Playbook:
    play = Playbook(quotas=quotas, offer=everything(rewritten=PLAIN, metered=True))
    play.now = float(int(play.now))
    play.call(lambda connection, now: connection.admit(Identity("User:ANONYMOUS"), now))
    return play


def versions(correlation_id: int, client_id: str) -> bytes:
    return request(18, 0, correlation_id, client_id=client_id)


@pytest.mark.parametrize("first", [b"", versions(1, "app")], ids=["forwarded", "answered"])
def test_its_first_request_tells_it(first: bytes) -> None:
    play = admitted(service(APP))
    play.client(first, produce(3, records=b"r" * 12_000))
    assert play.paused == {"client"}
    assert play.connection.authentication.client_id == "app"


def test_other_client_ids_are_not_throttled() -> None:
    play = admitted(service(APP))
    play.client(produce(3, records=b"r" * 12_000, client_id="other"))
    assert play.paused == set()


def test_each_client_id_has_a_default_of_its_own() -> None:
    quotas = service(EVERY)
    for name in ("one", "two", "three"):
        play = admitted(quotas)
        play.client(versions(1, name), produce(3, records=b"r" * 9_000, client_id=name))
        assert play.paused == set()
    again = admitted(quotas)
    again.client(produce(3, records=b"r" * 9_000, client_id="one"))
    assert again.paused == {"client"}


def test_a_request_without_one_leaves_it_to_the_next() -> None:
    play = admitted(service(APP))
    nameless = bytes.fromhex("0000000a 0012 0000 00000001 ffff")
    play.client(nameless, produce(3, records=b"r" * 12_000))
    assert play.paused == {"client"}


def test_a_later_one_does_not_count() -> None:
    play = admitted(service(APP))
    play.client(versions(1, "app"), produce(3, records=b"r" * 12_000, client_id="other"))
    assert play.paused == {"client"}


@pytest.mark.parametrize("at", range(1, 18))
def test_it_is_learnt_wherever_the_request_is_split(at: int) -> None:
    play = admitted(service(APP))
    frame = produce(3, records=b"r" * 12_000)
    play.client(frame[:at])
    play.client(frame[at:])
    assert play.paused == {"client"}
    assert bytes(play.to_broker) == frame


def test_one_that_ends_behind_its_request_is_not_waited_for() -> None:
    play = admitted(service(APP))
    frame = bytes.fromhex("0000000c 0003 0000 00000001 7fff 6161")
    play.client(frame)
    assert play.connection.authentication.client_id is None
    assert play.kept_bytes == 0 or play.connection.closed
